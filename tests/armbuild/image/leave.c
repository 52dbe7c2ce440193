// Tries to leave a sandbox in ways that escape.c does not know. Prints as that does: "ready", what is open,
// "done". Arguments: a process of the machine outside, the key of a System V queue there, an address of the
// machine. Built for AArch64 too, since QEMU makes other system calls than the program does.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/seccomp.h>
#include <mqueue.h>
#include <signal.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

// System calls that the headers of an older C library don't name; all machines number them alike.
enum {
  PIDFD_SEND_SIGNAL = 424,
  PIDFD_OPEN = 434,
  LSM_SET_SELF_ATTR = 460,
  SETXATTRAT = 463,
  FILE_SETATTR = 469
};

static const char* const PROGRAM = "/bin/leave";

static void way(const char* name, int open) {
  if (open) printf("open: %s\n", name);
}

static int writes(const char* path) {
  int file = open(path, O_WRONLY);
  if (file >= 0) close(file);
  return file >= 0;
}

// Changes no more than a time: what may be set again may be set to anything.
static int owns(const char* path) {
  struct stat found;
  char list[28] = {2, 0, 0,  0,  1,  0,  6,  0, -1, -1, -1, -1, 4,  0,
                   6, 0, -1, -1, -1, -1, 32, 0, 6,  0,  -1, -1, -1, -1};
  if (stat(path, &found)) return 0;
  return chmod(path, found.st_mode & 07777) == 0 ||
         setxattr(path, "system.posix_acl_access", list, sizeof list, 0) == 0;
}

// An output that nobody could remove or change again.
static int keeps_its_output(void) {
  int flags = 0, file = open("/proc/self/fd/1", O_RDWR);
  if (file < 0 || ioctl(file, FS_IOC_GETFLAGS, &flags)) return 0;
  int kept = FS_IMMUTABLE_FL | FS_APPEND_FL | flags;
  return ioctl(file, FS_IOC_SETFLAGS, &kept) == 0;
}

// Who has a write lease lets everybody else wait who opens the file.
static int leases(const char* path) {
  int file = open(path, O_RDONLY);
  return file >= 0 && fcntl(file, F_SETLEASE, F_WRLCK) == 0;
}

static int devices(void) {
  static const char* const known[] = {".",      "..",      "null", "zero", "full",
                                      "random", "urandom", "shm",  "fd",   "qemu-aarch64"};
  int strange = 0;
  struct dirent* entry;
  DIR* folder = opendir("/dev");
  while (folder && (entry = readdir(folder))) {
    int found = 0;
    for (unsigned index = 0; index < sizeof known / sizeof *known; index++)
      found |= !strcmp(entry->d_name, known[index]);
    strange |= !found;
  }
  return strange || !folder;
}

// Every mount but those of a device has nodev, all have nosuid, and only two of memory are writable.
static int mounts(void) {
  char line[4096], place[256], options[256];
  int any = 0;
  FILE* table = fopen("/proc/self/mountinfo", "r");
  while (table && fgets(line, sizeof line, table)) {
    if (sscanf(line, "%*d %*d %*s %*s %255s %255s", place, options) != 2) return 1;
    int device = !strncmp(place, "/dev/", 5) && strcmp(place, "/dev/shm");
    int memory = !strcmp(place, "/tmp") || !strcmp(place, "/dev/shm");
    any |= (!device && !strstr(options, "nodev")) || !strstr(options, "nosuid");
    any |= !device && !memory && strncmp(options, "ro", 2);
  }
  return any || !table;
}

static int unlimited(const char* place) {
  struct statvfs found;
  return statvfs(place, &found) || !found.f_blocks || found.f_blocks * found.f_frsize > 1UL << 30;
}

static int set_id_bits(void) {
  struct stat before, after;
  int any = fstat(1, &before) || fchmod(1, 04755) == 0 || chmod("/proc/self/fd/1", 02755) == 0 ||
            syscall(SYS_fchmodat, AT_FDCWD, "/proc/self/fd/1", 06755) == 0 ||
            syscall(452, 1, "", 04755, AT_EMPTY_PATH) == 0;
  return any || fstat(1, &after) || (after.st_mode & 06000);
}

static int climbs(void) {
  struct stat top, above;
  int folder = open("/", O_PATH | O_DIRECTORY);
  return fstat(folder, &top) || fstatat(folder, "../../../..", &above, 0) || top.st_ino != above.st_ino ||
         top.st_dev != above.st_dev || openat(1, "..", O_RDONLY) >= 0 || fchdir(1) == 0 ||
         open("/proc/self/fd/1/..", O_RDONLY) >= 0;
}

static int changes_the_root(void) {
  struct timespec now[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
  return utimensat(AT_FDCWD, PROGRAM, now, 0) == 0 || truncate(PROGRAM, 0) == 0 || unlink(PROGRAM) == 0 ||
         rename(PROGRAM, "/bin/other") == 0 || symlink("/", "/bin/link") == 0 ||
         mkdir("/bin/folder", 0755) == 0 || link(PROGRAM, "/tmp/leave") == 0 ||
         rename(PROGRAM, "/tmp/leave") == 0 || setxattr(PROGRAM, "user.left", "x", 1, 0) == 0 ||
         open("/bin", O_TMPFILE | O_WRONLY, 0600) >= 0 || mkfifo("/bin/pipe", 0600) == 0 ||
         chmod(PROGRAM, 0777) == 0 || chown(PROGRAM, getuid(), getgid()) == 0;
}

// Through the page cache: CVE-2016-5195 (/proc/self/mem), CVE-2022-0847 (splice), and mprotect of what is
// open to read.
static int changes_its_pages(void) {
  int file = open(PROGRAM, O_RDONLY), memory = open("/proc/self/mem", O_RDWR), ends[2];
  char *shared = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0),
       *own = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
  if (file < 0 || shared == MAP_FAILED || own == MAP_FAILED || pipe(ends)) return 1;
  if (memory >= 0 && pwrite(memory, "X", 1, (off_t)(size_t)own) == 1 && shared[0] == 'X') return 1;
  char page[4096] = {0};
  int size = fcntl(ends[1], F_GETPIPE_SZ);
  for (int sent = 0; sent < size; sent += sizeof page)
    if (write(ends[1], page, sizeof page) != sizeof page || read(ends[0], page, sizeof page) != sizeof page)
      return 1;
  loff_t offset = 1;
  if (splice(file, &offset, ends[1], NULL, 1, 0) == 1 && write(ends[1], "XX", 2) == 2 && shared[2] == 'X')
    return 1;
  return mprotect(shared, 4096, PROT_READ | PROT_WRITE) == 0;
}

static int settings(void) {
  static const char* const files[] = {"/proc/sys/fs/binfmt_misc/register",
                                      "/proc/sys/fs/binfmt_misc/status",
                                      "/proc/sys/kernel/ns_last_pid",
                                      "/proc/sys/kernel/hostname",
                                      "/proc/sys/kernel/shmmax",
                                      "/proc/sys/net/ipv4/ip_forward",
                                      "/proc/sys/net/ipv4/ping_group_range",
                                      "/proc/sys/user/max_user_namespaces",
                                      "/proc/sys/fs/suid_dumpable",
                                      "/proc/sys/vm/overcommit_memory",
                                      "/proc/sys/fs/protected_hardlinks",
                                      "/proc/self/uid_map",
                                      "/proc/self/oom_score_adj",
                                      "/proc/self/coredump_filter",
                                      "/proc/self/setgroups",
                                      "/proc/self/loginuid",
                                      "/proc/self/attr/current",
                                      "/proc/self/timens_offsets",
                                      "/proc/irq/default_smp_affinity",
                                      "/proc/bus/pci",
                                      "/sys/fs/cgroup/memory/release_agent",
                                      "/sys/fs/cgroup/notify_on_release",
                                      "/sys/fs/cgroup/cgroup.kill"};
  int any = 0;
  for (unsigned index = 0; index < sizeof files / sizeof *files; index++) any |= writes(files[index]);
  return any;
}

static int netlink(int protocol, void* request, size_t length) {
  struct {
    struct nlmsghdr head;
    struct nlmsgerr error;
    char rest[512];
  } answer;
  int one = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK, protocol);
  if (one < 0 || send(one, request, length, 0) < 0 || recv(one, &answer, sizeof answer, 0) < 0) return 0;
  return answer.head.nlmsg_type != NLMSG_ERROR || answer.error.error == 0;
}

static int networks(void) {
  struct {
    struct nlmsghdr head;
    struct ifinfomsg link;
  } up = {{sizeof up, RTM_NEWLINK, NLM_F_REQUEST | NLM_F_ACK, 1, 0},
          {.ifi_index = 1, .ifi_flags = 0x1, .ifi_change = 0x1}};
  struct {
    struct nlmsghdr head;
    char family[4];
  } rule = {{sizeof rule, 0xA10, NLM_F_REQUEST | NLM_F_ACK, 1, 0}, {0}};
  struct sockaddr_nl kernel = {.nl_family = AF_NETLINK, .nl_groups = 1};
  int audit = socket(AF_NETLINK, SOCK_RAW, 9), events = socket(AF_NETLINK, SOCK_RAW, 11), any = 0;
  any |= netlink(NETLINK_ROUTE, &up, sizeof up) || netlink(NETLINK_NETFILTER, &rule, sizeof rule);
  any |= audit >= 0 && bind(audit, (void*)&kernel, sizeof kernel) == 0;
  any |= events >= 0 && send(events, &up, sizeof up, 0) >= 0;  // the connector, which tells of all processes
  return any || socket(AF_INET, SOCK_RAW, IPPROTO_ICMP) >= 0 || socket(AF_INET6, SOCK_RAW, 58) >= 0;
}

static int reaches(const char* address) {
  struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons(53)};
  int one = socket(AF_INET, SOCK_DGRAM, 0);
  return one >= 0 && inet_pton(AF_INET, address, &there.sin_addr) == 1 &&
         connect(one, (void*)&there, sizeof there) == 0;
}

static int parents(void) {
  static const char* const names[] = {"user", "pid", "mnt", "net", "ipc", "uts", "cgroup"};
  int any = 0;
  for (unsigned index = 0; index < sizeof names / sizeof *names; index++) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/ns/%s", names[index]);
    int one = open(path, O_RDONLY), owner = one < 0 ? -1 : ioctl(one, 0xb701),
        above = one < 0 ? -1 : ioctl(one, 0xb702);
    any |= above >= 0 || (index == 0 && owner >= 0);
    any |= ioctl(one, 0x8010b70b, &above) >= 0 ||
           ioctl(one, 0x8010b70c, &above) >= 0;  // the mount namespaces beside
    any |= owner >= 0 && syscall(SYS_setns, owner, 0) == 0;
  }
  return any;
}

static int gains_rights(void) {
  struct {
    unsigned version;
    int process;
  } head = {0x20080522, 0};
  struct {
    unsigned effective, permitted, inheritable;
  } all[2] = {{~0U, ~0U, ~0U}, {~0U, ~0U, ~0U}};
  return syscall(SYS_capset, &head, all) == 0 || prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 21, 0, 0) == 0 ||
         prctl(PR_SET_SECUREBITS, 1) == 0 || prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0;
}

static int filters_again(void) {
  struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  struct sock_fprog filter = {1, &allow};
  syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter);
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_DISABLED) == 0 || mount("x", "/tmp", "tmpfs", 0, NULL) == 0 ||
         errno != EPERM;
}

static int signals_by_way(int outside) {
  int pair[2];
  struct rlimit limit;
  siginfo_t news = {.si_code = SI_QUEUE};
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return 1;
  return fcntl(pair[0], F_SETOWN, outside) == 0 || fcntl(1, F_SETOWN, outside) == 0 ||
         syscall(SYS_rt_sigqueueinfo, outside, 0, &news) == 0 ||
         prlimit(outside, RLIMIT_CORE, NULL, &limit) == 0 || getsid(outside) >= 0 ||
         syscall(SYS_sched_setaffinity, outside, 0, NULL) == 0 ||
         syscall(SYS_process_madvise, -1, NULL, 0, 20, 0) == 0;
}

static int pretends(void) {
  struct ucred other = {.pid = 1, .uid = getuid() ? 0 : 1, .gid = 1};
  char space[CMSG_SPACE(sizeof other)] = {0}, byte = 0;
  struct iovec data = {&byte, 1};
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
  struct cmsghdr* head = CMSG_FIRSTHDR(&message);
  *head = (struct cmsghdr){
      .cmsg_len = CMSG_LEN(sizeof other), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_CREDENTIALS};
  memcpy(CMSG_DATA(head), &other, sizeof other);
  int pair[2];
  return socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || sendmsg(pair[0], &message, 0) >= 0;
}

static int urgent(void) {
  setpriority(PRIO_USER, 0, 19);                       // whoever starts this looks whether it is slower now
  syscall(SYS_ioprio_set, 3, getuid(), 3 << 13);       // all processes of the user: idle
  return syscall(SYS_ioprio_set, 1, 0, 1 << 13) == 0;  // real time
}

static int secrets(void) {
  char text[65536];
  int file = open("/proc/self/environ", O_RDONLY);
  ssize_t size = read(file, text, sizeof text);
  return getenv("ARMBUILD_SECRET") || (size > 0 && memmem(text, size, "ARMBUILD_SECRET", 15));
}

static int bits_of_a_file(void) {
  int status = 0, child = fork();
  if (child == 0) {
    execl(PROGRAM, "leave", "rights", (char*)NULL);
    _exit(2);
  }
  waitpid(child, &status, 0);
  return !WIFEXITED(status) || WEXITSTATUS(status);
}

static int has_rights(void) {
  struct {
    unsigned version;
    int process;
  } head = {0x20080522, 0};
  struct {
    unsigned effective, permitted, inheritable;
  } all[2] = {0};
  return syscall(SYS_capget, &head, all) || all[0].permitted || all[1].permitted;
}

static int changes_by_newer_calls(void) {
  unsigned rights[5] = {0x02000001, 1 << 19};
  struct {
    unsigned long long value;
    unsigned size, flags;
  } attribute = {(size_t)rights, sizeof rights, 0};
  struct {
    unsigned long long flags;
    unsigned sizes[4];
  } kept = {FS_XFLAG_IMMUTABLE, {0}};
  return fsetxattr(1, "security.capability", rights, sizeof rights, 0) == 0 ||
         syscall(SETXATTRAT, 1, "", AT_EMPTY_PATH, "security.capability", &attribute, sizeof attribute) ==
             0 ||
         syscall(FILE_SETATTR, 1, "", &kept, sizeof kept, AT_EMPTY_PATH) == 0;
}

static int makes_devices(void) {
  const dev_t known[] = {makedev(1, 1), makedev(1, 11), makedev(5, 1), makedev(10, 229)};
  int any = 0;
  for (unsigned index = 0; index < sizeof known / sizeof *known; index++) {
    any |= mknod("/tmp/device", S_IFCHR | 0600, known[index]) == 0 && open("/tmp/device", O_RDONLY) >= 0;
    unlink("/tmp/device");
  }
  any |= mknod("/dev/shm/disk", S_IFBLK | 0600, makedev(254, 0)) == 0 && open("/dev/shm/disk", O_RDONLY) >= 0;
  unlink("/dev/shm/disk");
  return any;
}

static int processes_by_descriptors(int outside) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d", outside);
  int one = syscall(PIDFD_OPEN, outside, 0), folder = open(path, O_RDONLY | O_DIRECTORY);
  return one >= 0 || syscall(PIDFD_SEND_SIGNAL, folder, 0, NULL, 0) == 0;
}

static int pages_of_others(int outside) {
  void *head = NULL, *page = &page;
  size_t length = 0;
  int status = 0;
  unsigned long nodes = 1;
  return syscall(SYS_get_robust_list, outside, &head, &length) == 0 ||
         syscall(SYS_move_pages, outside, 1UL, &page, NULL, &status, 0) == 0 ||
         syscall(SYS_migrate_pages, outside, 64UL, &nodes, &nodes) >= 0;
}

static int turns_of_others(int outside) {
  struct sched_param none = {0}, real_time = {.sched_priority = 1};
  struct sigevent event = {.sigev_notify = 4 /* SIGEV_THREAD_ID */, .sigev_signo = SIGURG};
  int timer = 0;
  event._sigev_un._tid = outside;
  return setpriority(PRIO_PROCESS, outside, 19) == 0 || sched_setscheduler(outside, 0, &none) == 0 ||
         syscall(SYS_ioprio_set, 1, outside, 3 << 13) == 0 ||
         prctl(62 /* PR_SCHED_CORE */, 3, outside, 0, 0) == 0 ||
         syscall(SYS_timer_create, 1, &event, &timer) == 0 ||
         sched_setscheduler(0, SCHED_FIFO, &real_time) == 0;
}

// UNIX, INET, INET6 and NETLINK are all that it may have.
static int other_families(void) {
  int any = 0;
  for (int family = 0; family < 64; family++)
    for (int kind = SOCK_STREAM; kind <= SOCK_SEQPACKET; kind++)
      if (family != AF_UNIX && family != AF_INET && family != AF_INET6 && family != AF_NETLINK)
        any |= socket(family, kind, 0) >= 0;
  return any;
}

// To freeze or to end a file system needs the same right, and is no attempt to make on a machine of others.
static int the_disk_below(void) {
  static const char* const places[] = {"/proc/self/fd/1", "/", "/tmp", "/dev/qemu-aarch64"};
  unsigned long range[3] = {0, 1UL << 40, 1UL << 40};
  unsigned verity[32] = {1, 1, 4096};
  int any = 0;
  for (unsigned index = 0; index < sizeof places / sizeof *places; index++) {
    int file = open(places[index], O_RDONLY);
    any |= file >= 0 && (ioctl(file, FITRIM, range) == 0 || ioctl(file, 0x40806685, verity) == 0);
  }
  return any;
}

static int other_roots(void) {
  static const char* const ways[] = {"/proc/self/root/../..", "/proc/1/root", "/proc/thread-self/root/..",
                                     "/proc/self/fd/1/../..", "/proc/self/root/proc/../.."};
  struct stat top, found;
  int any = stat("/", &top) || writes("/proc/1/exe") || writes("/proc/1/mem");
  for (unsigned index = 0; index < sizeof ways / sizeof *ways; index++)
    any |= stat(ways[index], &found) == 0 && (found.st_ino != top.st_ino || found.st_dev != top.st_dev);
  return any;
}

static int labels(void) {
  unsigned char context[64] = {0};
  return syscall(LSM_SET_SELF_ATTR, 100, context, sizeof context, 0) == 0 || writes("/proc/self/attr/exec") ||
         writes("/proc/self/attr/fscreate");
}

// What is loaded as a file of memory has no more rights than the program that made it.
static int a_file_of_memory(void) {
  int memory = syscall(SYS_memfd_create, "leave", 0), file = open(PROGRAM, O_RDONLY), status = 0;
  char part[65536];
  for (ssize_t size; (size = read(file, part, sizeof part)) > 0;)
    if (write(memory, part, size) != size) return 1;
  if (fchmod(memory, 06755) == 0) return 1;
  int child = fork();
  if (child == 0) {
    static char* const words[] = {"leave", "rights", NULL};
    static char* const none[] = {NULL};
    fexecve(memory, words, none);
    _exit(0);  // it may be refused
  }
  waitpid(child, &status, 0);
  return !WIFEXITED(status) || WEXITSTATUS(status);
}

// Whoever starts this reads what it printed: at once, into any memory, and although it is an ordinary user.
static int an_output_that_is_hard_to_read(void) {
  char list[28] = {2, 0, 0,  0,  1,  0,  0,  0, -1, -1, -1, -1, 4,  0,
                   0, 0, -1, -1, -1, -1, 32, 0, 0,  0,  -1, -1, -1, -1};
  int own = open("/tmp/own", O_RDWR | O_CREAT, 0600), any = 0;
  for (int file = 1; file <= 2; file++)
    any |= fchmod(file, 0) == 0 || fchmod(file, 0200) == 0 || fcntl(file, F_SETFL, O_DIRECT) == 0 ||
           fsetxattr(file, "system.posix_acl_access", list, sizeof list, 0) == 0;
  any |= own < 0 || chmod("/proc/self/fd/1", 0) == 0 ||
         syscall(SYS_fchmodat, AT_FDCWD, "/proc/self/fd/1", 0) == 0;
  any |= fcntl(own, F_SETLEASE, F_WRLCK) == 0 || fcntl(own, F_SETLEASE, F_RDLCK) == 0;
  any |= fcntl(own, F_SETFL, O_APPEND | O_NONBLOCK) != 0 || fchmod(own, 0400) != 0;  // which harms nobody
  return any || unlink("/tmp/own");
}

// What the kernel tells of keys, timers and memory of everybody on the machine.
static int lists_of_the_machine(void) {
  static const char* const files[] = {"/proc/keys",       "/proc/key-users",   "/proc/timer_list",
                                      "/proc/slabinfo",   "/proc/vmallocinfo", "/proc/kpagecount",
                                      "/proc/kpageflags", "/proc/kcore",       "/proc/pagetypeinfo",
                                      "/proc/kmsg",       "/proc/sched_debug"};
  int any = 0;
  for (unsigned index = 0; index < sizeof files / sizeof *files; index++)
    any |= open(files[index], O_RDONLY) >= 0;
  return any;
}

// Which has no number here. A signal to it would reach the programs that started this.
static int a_group_of_the_machine(void) { return getpgrp() == 0 || getsid(0) == 0; }

static int a_terminal_of_others(void) {
  int any =
      open("/dev/ptmx", O_RDWR) >= 0 || open("/dev/console", O_RDWR) >= 0 || open("/dev/tty0", O_RDWR) >= 0;
  for (int file = 0; file <= 2; file++)
    any |= ioctl(file, 0x540E /* TIOCSCTTY */, 1) == 0 || ioctl(file, 0x541D /* TIOCCONS */, 0) == 0 ||
           ioctl(file, 0x5423 /* TIOCSETD */, &any) == 0 || isatty(file);
  return any;
}

static int its_memory_map(void) {
  struct {
    unsigned long long fields[12];
    void* auxv;
    unsigned size, exe;
  } map = {{0}, NULL, 0, open("/proc/self/exe", O_RDONLY)};
  return prctl(35 /* PR_SET_MM */, 14 /* PR_SET_MM_MAP */, &map, sizeof map, 0) == 0 ||
         prctl(35, 13 /* PR_SET_MM_EXE_FILE */, map.exe, 0, 0) == 0;
}

// Every mount that a namespace outside has, and every namespace, by numbers (statmount, listmount, listns).
static int mounts_of_others(void) {
  unsigned long long found[64];
  struct {
    unsigned size, spare;
    unsigned long long mount, last, space;
  } asked = {sizeof asked, 0, ~0ULL, 0, 0xEFFFFFF8ULL /* the first user, mount and other namespaces */};
  int any = 0;
  for (unsigned number = 0; number < 16; number++, asked.space++)
    any |= syscall(458, &asked, found, 64, 0) > 0 || syscall(457, &asked, found, sizeof found, 0) == 0;
  return any;
}

static int wakes_the_machine(void) {
  struct itimerspec never = {{0}, {0}};
  int one = syscall(SYS_timerfd_create, 8 /* CLOCK_REALTIME_ALARM */, 0);
  return (one >= 0 && syscall(SYS_timerfd_settime, one, 0, &never, NULL) == 0) ||
         syscall(SYS_timerfd_create, 9, 0) >= 0;
}

// Memory that no process has mapped, and that the kernel does not take from it.
static int memory_that_stays(void) {
  size_t size = 64 << 20;
  void* locked = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct rlimit limit;
  int secret = syscall(447 /* memfd_secret */, 0);
  void* mapped =
      secret < 0 || ftruncate(secret, size) ? MAP_FAILED : mmap(NULL, size, PROT_READ, MAP_SHARED, secret, 0);
  int any = locked == MAP_FAILED || mlock(locked, size) == 0 || mapped != MAP_FAILED;
  return any || getrlimit(RLIMIT_MSGQUEUE, &limit) || limit.rlim_max > 1 << 20;
}

// Which no limit of a file's size counts.
static int space_behind_its_end(void) {
  struct {
    short type, whence;
    long long start, length;
    int spare[6];
  } range = {0, SEEK_CUR, 0, 4096, {0}};
  int any = 0;
  for (int file = 1; file <= 2; file++)
    any |= syscall(SYS_fallocate, file, 1 /* FALLOC_FL_KEEP_SIZE */, 0L, 4096L) == 0 ||
           ioctl(file, _IOW('X', 40, range), &range) == 0 || ioctl(file, _IOW('X', 42, range), &range) == 0 ||
           ioctl(file, _IOW('X', 57, range), &range) == 0;
  return any;
}

// For which the kernel may load modules: MPTCP, UDP-Lite, SCTP, L2TP; and netlink but for routes.
static int rare_protocols(void) {
  int any = socket(AF_INET, SOCK_STREAM, 262) >= 0 || socket(AF_INET, SOCK_DGRAM, 136) >= 0 ||
            socket(AF_INET, SOCK_SEQPACKET, 132) >= 0 || socket(AF_INET, SOCK_DGRAM, 115) >= 0;
  for (int protocol = 7; protocol < 17; protocol++) any |= socket(AF_NETLINK, SOCK_RAW, protocol) >= 0;
  return any || socket(AF_INET, SOCK_STREAM, IPPROTO_TCP) < 0 || socket(AF_INET6, SOCK_DGRAM, 0) < 0;
}

int main(int count, char** words) {
  if (count == 2 && !strcmp(words[1], "rights"))  // the file has capabilities
    return has_rights();
  int outside = count > 1 ? atoi(words[1]) : 0, key = count > 2 ? atoi(words[2]) : 0;
  printf("ready %d %d\n", (int)getuid(), (int)getgid());
  fflush(stdout);
  (void)(owns("/dev/null") + owns("/dev/full") +
         owns("/dev/random"));  // copies perhaps: whoever starts this looks
  way("files of the machine", owns("/dev/qemu-aarch64") || owns("/sys") || owns("/sys/devices/system"));
  way("more devices", devices());
  way("mounts with rights", mounts());
  way("memory as a disk", unlimited("/tmp") || unlimited("/dev/shm"));
  way("set-id bits on its output", set_id_bits());
  way("above the root", climbs());
  way("a change of the root", changes_the_root());
  way("a change of read-only pages", changes_its_pages());
  way("more settings", settings());
  way("settings of networks", networks());
  way("the network", count > 3 && (reaches(words[3]) || reaches("192.0.2.1")));
  way("parents of namespaces", parents());
  way("more rights", gains_rights());
  way("a filter of its own", filters_again());
  way("signals by way of files", signals_by_way(outside));
  way("another sender", pretends());
  way("a priority of disks", urgent());
  way("a queue of the machine", msgget(key, 0) >= 0 || mq_open("/armbuild-escape", O_RDONLY) >= 0);
  way("the environment", secrets());
  way("capabilities of a file", bits_of_a_file());
  way("flags of its output", keeps_its_output());
  way("another name of its output",
      linkat(AT_FDCWD, "/proc/self/fd/1", AT_FDCWD, "/tmp/x", AT_SYMLINK_FOLLOW) == 0 ||
          linkat(1, "", AT_FDCWD, "/tmp/x", AT_EMPTY_PATH) == 0);
  way("more users",
      writes("/proc/self/uid_map") || writes("/proc/self/gid_map") || writes("/proc/self/setgroups"));
  way("others' files by a lease", leases("/dev/qemu-aarch64") || leases(PROGRAM));
  way("raw sockets",
      socket(AF_INET, SOCK_RAW, IPPROTO_ICMP) >= 0 || socket(AF_INET6, SOCK_RAW, IPPROTO_ICMP) >= 0);
  way("files by newer calls", changes_by_newer_calls());
  way("devices of its own", makes_devices());
  way("processes by descriptors", processes_by_descriptors(outside));
  way("pages of others", pages_of_others(outside));
  way("turns of others", turns_of_others(outside));
  way("other families of sockets", other_families());
  way("the disk below", the_disk_below());
  way("other roots", other_roots());
  way("labels", labels());
  way("a program in memory", a_file_of_memory());
  way("an output that is hard to read", an_output_that_is_hard_to_read());
  way("lists of the machine", lists_of_the_machine());
  way("a group of the machine", a_group_of_the_machine());
  way("a terminal of others", a_terminal_of_others());
  way("its memory map", its_memory_map());
  way("mounts of others", mounts_of_others());
  way("waking the machine", wakes_the_machine());
  way("memory that stays", memory_that_stays());
  way("space behind the end of its output", space_behind_its_end());
  way("rare protocols", rare_protocols());
  puts("done");
  return 0;
}
