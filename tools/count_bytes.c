// A plugin of QEMU 7.2 that counts what a program's loads and stores bring from memory, for
// tools/count_bytes.py.
//
//   -plugin count_bytes.so,ops=ADDRESS,into=FILE
//
// Between the core and memory is a cache of 1 MiB, 8 ways, lines of 64 bytes, the least recently used leaves
// first: the second-level cache of a Neoverse core. A store to byte i of the 16 at ADDRESS says that op i
// begins; 0 ends the count. FILE gets a line per op: its number, and bytes of weights, of the KV cache and of
// all else (addresses from 2^36, from 2^37, others), each line of the cache that was missing.
//
// The interface: https://www.qemu.org/docs/master/devel/tcg-plugins.html, declared here because Debian has no
// package of its header.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { kNoRegisters = 0, kReadsAndWrites = 3 };

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t,
                                           void (*)(qemu_plugin_id_t, struct qemu_plugin_tb*));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb*);
struct qemu_plugin_insn* qemu_plugin_tb_get_insn(const struct qemu_plugin_tb*, size_t);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn*,
                                      void (*)(unsigned, qemu_plugin_meminfo_t, uint64_t, void*), int, int,
                                      void*);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void*), void*);
unsigned qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

enum { kOps = 16, kSets = 2048, kWays = 8, kLine = 64, kKinds = 3 };

static uint64_t lines[kSets][kWays];  // most recently used first; line + 1, 0: none
static uint64_t missed[kOps][kKinds];
static uint64_t ops;
static unsigned op;
static const char* into;

static void touch(uint64_t line) {
  uint64_t* const set = lines[line % kSets];
  int way = 0;
  while (way < kWays - 1 && set[way] != line + 1) ++way;
  if (set[way] != line + 1) {
    const uint64_t address = line * kLine;
    ++missed[op][address >> 36 == 1 ? 0 : address >> 37 == 1 ? 1 : 2];
  }
  memmove(set + 1, set, (size_t)way * sizeof *set);
  set[0] = line + 1;
}

static void on_access(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t address, void* unused) {
  (void)vcpu, (void)unused;
  if (address - ops < kOps) {
    op = (unsigned)(address - ops);
    return;
  }
  const uint64_t last = address + (1u << qemu_plugin_mem_size_shift(info)) - 1;
  for (uint64_t line = address / kLine; line <= last / kLine; ++line) touch(line);
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb* block) {
  (void)id;
  for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); ++i) {
    qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(block, i), on_access, kNoRegisters,
                                     kReadsAndWrites, NULL);
  }
}

static void at_exit(qemu_plugin_id_t id, void* unused) {
  (void)id, (void)unused;
  FILE* const file = fopen(into, "w");
  if (file == NULL) return;  // the tool says that there is no count
  for (int i = 1; i < kOps; ++i) {
    fprintf(file, "%d", i);
    for (int kind = 0; kind < kKinds; ++kind) {
      fprintf(file, " %llu", (unsigned long long)missed[i][kind] * kLine);
    }
    fprintf(file, "\n");
  }
  fclose(file);
}

struct qemu_info;
__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id,
                                                               const struct qemu_info* info, int argc,
                                                               char** argv) {
  (void)info;
  for (int i = 0; i < argc; ++i) {
    if (strncmp(argv[i], "ops=", 4) == 0) ops = strtoull(argv[i] + 4, NULL, 0);
    if (strncmp(argv[i], "into=", 5) == 0) into = strdup(argv[i] + 5);
  }
  if (ops == 0 || into == NULL) {
    fprintf(stderr, "count_bytes: ops=ADDRESS and into=FILE must be given\n");
    return 1;
  }
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
  qemu_plugin_register_atexit_cb(id, at_exit, NULL);
  return 0;
}
