// Calls quantized products once, for tools/count_instructions.py, which counts what QEMU executes between
// count_begin and count_end.
//
//   one_call TARGET BITS GROUP_SIZE ROWS THREADS OUT_FEATURES IN_FEATURES [OUT_FEATURES IN_FEATURES ...]
//
// GROUP_SIZE is a number, or like 32-bf16 for scales in bfloat16. Storage is bfloat16. All weights are 0,
// which no kernel looks at: packing is not what is counted.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "armllm/dispatch.h"
#include "armllm/ops.h"
#include "armllm/threads.h"

extern "C" {
__attribute__((noinline)) void count_begin() { __asm__ volatile(""); }
__attribute__((noinline)) void count_end() { __asm__ volatile(""); }
}

namespace {

struct Free {
  void operator()(void* p) const { free(p); }
};
using Memory = std::unique_ptr<void, Free>;

Memory memory(int64_t bytes) {
  Memory result(aligned_alloc(64, static_cast<size_t>((bytes + 63) / 64 * 64)));
  if (result == nullptr) throw std::bad_alloc();
  return result;
}

struct Call {
  armllm::MatmulArgs args{};
  Memory weight, x, out;
};

void run(int argc, char** argv) {
  const std::string target = argv[1];
  const int bits = atoi(argv[2]);
  const bool narrow = std::string(argv[3]).find("-bf16") != std::string::npos;
  const int64_t group = atoll(argv[3]), rows = atoll(argv[4]);
  armllm::set_num_threads(atoi(argv[5]));
  const armllm::Choice choice = armllm::choose(target, armllm::cpu_has);
  const std::string& used = choice.target[static_cast<size_t>(armllm::Op::matmul_w4a8_bf16)];
  if (used != target) throw std::invalid_argument("this CPU would use " + used + ", not " + target);
  std::vector<Call> calls;
  for (int i = 6; i + 1 < argc; i += 2) {
    const armllm::WeightShape shape{atoll(argv[i]), atoll(argv[i + 1]), group, false,
                                    narrow ? armllm::Storage::bf16 : armllm::Storage::f32};
    const int64_t bytes = armllm::packed_bytes(choice.table, bits, shape);
    Call call;
    call.weight = memory(bytes);
    call.x = memory(rows * shape.in_features * 2);
    call.out = memory(rows * shape.out_features * 2);
    memset(call.weight.get(), 0, static_cast<size_t>(bytes));
    memset(call.x.get(), 0x3f, static_cast<size_t>(rows * shape.in_features * 2));  // no row of zeros
    call.args.out = call.out.get();
    call.args.x = call.x.get();
    call.args.weight = call.weight.get();
    call.args.shape = shape;
    call.args.rows = rows;
    call.args.out_stride = shape.out_features;
    call.args.x_stride = shape.in_features;
    calls.push_back(std::move(call));
  }
  const auto form = bits == 4 ? armllm::WeightForm::int4 : armllm::WeightForm::int8;
  count_begin();
  for (const Call& call : calls) armllm::matmul(choice.table, form, armllm::Storage::bf16, call.args);
  count_end();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 8 || argc % 2 != 0) {
    fprintf(stderr,
            "usage: one_call TARGET BITS GROUP_SIZE[-bf16] ROWS THREADS OUT_FEATURES IN_FEATURES ...\n");
    return 2;
  }
  try {
    run(argc, argv);
  } catch (const std::exception& error) {
    fprintf(stderr, "one_call: %s\n", error.what());
    return 1;
  }
  return 0;
}
