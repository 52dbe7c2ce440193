// Tries to leave a sandbox. Prints one line for each way that is open, "ready" in front and "done" at the end.
// Arguments: a process of the machine outside, a TCP port and an abstract Unix socket there, a System V segment.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static void way(const char *name, int open) {
    if (open)
        printf("open: %s\n", name);
}

static int writes(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT, 0644);
    if (file >= 0)
        close(file);
    return file >= 0;
}

static int exists(const char *path) { return access(path, F_OK) == 0; }

static int connects(int family, const void *address, socklen_t length) {
    int one = socket(family, SOCK_STREAM, 0), found = one >= 0 && connect(one, address, length) == 0;
    if (one >= 0)
        close(one);
    return found;
}

static int idle(void *unused) {
    (void)unused;
    return 0;
}

static int clones(int flags) {
    static char stack[65536];
    int child = clone(idle, stack + sizeof stack, flags | SIGCHLD, NULL);
    if (child > 0)
        waitpid(child, NULL, 0);
    return child > 0;
}

static int rights(void) {
    char line[256];
    int any = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (!strncmp(line, "Cap", 3) && strtoull(line + 7, NULL, 16))
            any = 1;
    return any || !status;
}

static int strangers(void) {
    int count = 0;
    struct dirent *entry;
    DIR *processes = opendir("/proc");
    while (processes && (entry = readdir(processes)))
        count += atoi(entry->d_name) > 0;
    return count != 1;
}

static int descriptors(void) {
    int count = 0;
    for (int number = 3; number < 1024; number++)
        count += fcntl(number, F_GETFD) >= 0;
    return count;
}

// What a child does that may be killed for it: 0 where it was, or where what it asked for was refused.
static int child(int (*act)(void)) {
    int status = 0, number = fork();
    if (number == 0)
        _exit(act());
    waitpid(number, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status);
}

static int other_tables(void) {
#ifdef __x86_64__
    return syscall(0x40000000 | SYS_getpid) > 0;
#else
    return 0;
#endif
}

static int calls_of_32_bits(void) {
#ifdef __x86_64__
    long found;
    __asm__ volatile("int $0x80" : "=a"(found) : "a"(20) : "memory");
    return found > 0;
#else
    return 0;
#endif
}

static int grows(int which) {
    struct rlimit limit;
    if (getrlimit(which, &limit) || limit.rlim_max == RLIM_INFINITY)
        return 1;
    limit.rlim_cur = limit.rlim_max = limit.rlim_max + 1;
    return setrlimit(which, &limit) == 0;
}

static int shared_mounts(void) {
    char line[4096];
    int any = 0;
    FILE *mounts = fopen("/proc/self/mountinfo", "r");
    while (mounts && fgets(line, sizeof line, mounts))
        any |= strstr(line, " shared:") != NULL;
    return any || !mounts;
}

static int families(void) {
    static const int unknown[] = {15, 17, 21, 29, 30, 31, 33, 38, 39, 40, 43, 44};  // linux/socket.h: no namespaces
    int pair[2], any = 0;
    for (unsigned index = 0; index < sizeof unknown / sizeof *unknown; index++)
        any |= socket(unknown[index], SOCK_DGRAM, 0) >= 0 || errno != EAFNOSUPPORT
            || socketpair(unknown[index], SOCK_DGRAM, 0, pair) == 0 || errno != EAFNOSUPPORT;
    return any;
}

static int refuses_all(const long *calls, unsigned number) {
    for (unsigned index = 0; index < number; index++)
        if (syscall(calls[index], 0, 0, 0, 0, 0, 0) != -1 || errno != EPERM)
            return 0;
    return 1;
}
#define ANY(...) !refuses_all((const long[]){__VA_ARGS__}, sizeof((const long[]){__VA_ARGS__}) / sizeof(long))

static int becomes_another(void) {
    execl("/bin/escape", "escape", "who", (char *)NULL);
    return 1;
}

int main(int count, char **words) {
    if (count == 2 && !strcmp(words[1], "who"))  // the program has a set-user-id bit
        return geteuid() != getuid() || getegid() != getgid();
    if (count == 2 && !strcmp(words[1], "bomb")) {
        for (int left = 3000; left && fork(); left--)
            ;
        return pause();
    }
    int outside = count > 1 ? atoi(words[1]) : 0, port = count > 2 ? atoi(words[2]) : 0;
    struct rlimit limit;
    printf("ready %d %d\n", (int)getuid(), (int)getgid());
    fflush(stdout);
    way("a descriptor of the machine", descriptors());
    way("capabilities", rights());
    way("a file of the root", writes("/escaped") || writes("/bin/escape"));
    way("a link to the machine", exists("/link/marker") || exists("/up/marker") || exists("/proc/1/root/link/marker"));
    way("settings of the kernel", writes("/proc/sys/kernel/core_pattern") || writes("/proc/sysrq-trigger")
        || writes("/proc/sys/kernel/modprobe") || writes("/sys/fs/cgroup/release_agent"));
    way("devices", exists("/dev/vda") || exists("/dev/mem") || exists("/dev/kmsg") || exists("/dev/tty")
        || mknod("/tmp/disk", S_IFBLK | 0600, makedev(254, 0)) == 0);
    way("processes of the machine", strangers() || kill(outside, 0) == 0);
    way("mounting", mount("", "/", NULL, MS_REMOUNT, NULL) == 0 || mount("proc", "/tmp", "proc", 0, NULL) == 0
        || umount2("/sys", MNT_DETACH) == 0 || errno != EPERM);
    way("a root of its own", chroot("/tmp") == 0 || syscall(SYS_pivot_root, "/tmp", "/tmp") == 0);
    way("more namespaces", unshare(CLONE_NEWUSER) == 0 || clones(CLONE_NEWUSER) || clones(CLONE_NEWNS));
    way("clone3", syscall(SYS_clone3, NULL, 0) != -1 || errno != ENOSYS);
    way("others' namespaces", setns(open("/proc/1/ns/net", O_RDONLY), 0) == 0 || errno != EPERM);
    way("keys", syscall(SYS_keyctl, 0, -3, 1) >= 0 || syscall(SYS_add_key, "user", "a", "b", 1, -3) >= 0);
    way("io_uring", syscall(SYS_io_uring_setup, 1, NULL) >= 0 || errno != EPERM);
    way("bpf", syscall(SYS_bpf, 0, NULL, 0) >= 0 || errno != EPERM);
    way("files by handle", syscall(SYS_open_by_handle_at, AT_FDCWD, NULL, 0) >= 0 || errno != EPERM);
    way("the terminal", ioctl(0, TIOCSTI, "x") == 0 || errno != EPERM || open("/dev/tty", O_RDWR) >= 0);
    way("vsock", socket(40, SOCK_STREAM, 0) >= 0 || socket(AF_PACKET, SOCK_RAW, 0) >= 0);
    struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(0x7F000001)};
    way("the machine's ports", connects(AF_INET, &server, sizeof server));
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    if (count > 3)
        strncpy(local.sun_path + 1, words[3], sizeof local.sun_path - 2);
    way("abstract sockets", connects(AF_UNIX, &local, sizeof(sa_family_t) + 1 + strlen(local.sun_path + 1)));
    way("shared memory", count > 4 && shmget(atoi(words[4]), 1, 0) >= 0);
    way("another user", setuid(getuid() ? 0 : 1) == 0 || setgid(getgid() ? 0 : 1) == 0);
    way("set-user-id", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1);
    way("core files", getrlimit(RLIMIT_CORE, &limit) || limit.rlim_max != 1);  // 0 would not stop a pipe's program
    way("processes without end", getrlimit(RLIMIT_NPROC, &limit) || limit.rlim_max > 4096);
    way("memory without end", getrlimit(RLIMIT_DATA, &limit) || limit.rlim_max == RLIM_INFINITY);
    way("tracing", ptrace(PTRACE_ATTACH, getppid(), NULL, NULL) == 0 || errno != EPERM);
    way("memory of others", ANY(SYS_process_vm_readv, SYS_process_vm_writev, SYS_pidfd_getfd, SYS_kcmp));
    way("page faults", ANY(SYS_userfaultfd) || exists("/dev/userfaultfd"));
    way("the newer calls to mount", ANY(SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick, SYS_open_tree,
        SYS_move_mount, SYS_mount_setattr, 467));
    way("modules of the kernel", ANY(SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load));
    way("the machine's clock, disks and end", ANY(SYS_settimeofday, SYS_clock_settime, SYS_adjtimex, SYS_swapon,
        SYS_swapoff, SYS_reboot, SYS_acct, SYS_quotactl, 443, SYS_fanotify_init, SYS_syslog, SYS_vhangup));
    way("its name", sethostname("x", 1) == 0 || setdomainname("x", 1) == 0);
    way("the terminal by a number of 64 bits", syscall(SYS_ioctl, 0, 0x100005412UL, "x") == 0 || errno != EPERM
        || syscall(SYS_ioctl, 0, 0xF0000541CUL, "x") == 0 || errno != EPERM);
    way("other tables of calls", child(other_tables) || child(calls_of_32_bits));
    way("networks without namespaces", families());
    way("its own program", writes("/proc/self/exe") || writes("/proc/1/exe") || writes("/proc/self/root/bin/escape")
        || writes("/proc/self/cwd/escaped") || writes("/proc/1/root/escaped"));
    way("a set-user-id program", child(becomes_another));
    way("groups of processes", mkdir("/sys/fs/cgroup/x", 0755) == 0 || writes("/sys/fs/cgroup/cgroup.procs")
        || writes("/proc/self/cgroup") || mount("cgroup", "/tmp", "cgroup", 0, "memory") == 0);
    way("processors and memory of the machine", writes("/sys/devices/system/cpu/cpu1/online")
        || writes("/sys/devices/system/memory/probe") || exists("/sys/kernel") || exists("/sys/firmware"));
    way("the kernel's memory", open("/proc/kcore", O_RDONLY) >= 0 || open("/proc/kmsg", O_RDONLY) >= 0);
    way("shared mounts", shared_mounts());
    way("limits", grows(RLIMIT_NPROC) || grows(RLIMIT_DATA) || grows(RLIMIT_NOFILE) || grows(RLIMIT_FSIZE));
    struct sched_param urgent = {.sched_priority = 1};
    way("a priority above others", setpriority(PRIO_PROCESS, 0, -20) == 0
        || sched_setscheduler(0, SCHED_FIFO, &urgent) == 0);
    way("groups of the caller", getgroups(0, NULL) > 1 || setgroups(0, NULL) == 0);
    way("signals to the machine", kill(-1, 0) == 0 || syscall(SYS_tgkill, outside, outside, 0) == 0
        || syscall(SYS_pidfd_open, outside, 0) >= 0 || killpg(outside, 0) == 0);
    puts("done");
    return 0;
}
