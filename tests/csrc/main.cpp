// The conformance runner: every op of every target that this CPU can run, against float64, without Python.
//
//   conformance [--target NAME]... [--op NAME]... [--chosen] [--list] [--seed N]
//
// --chosen leaves out what dispatch would not choose on this CPU. A target is tried whatever the length of
// the SVE vectors. What dispatch chooses is tested with any targets. A line per op and target, exit status 1
// when anything failed, 2 for wrong usage.

#include <stdio.h>
#include <stdlib.h>

#include <set>
#include <stdexcept>

#include "armllm/threads.h"
#include "support.h"

namespace {

int64_t failures = 0, cases = 0;

void report(const char* op, const char* target, const conformance::Result& result) {
  const bool ok = result.failures == 0 && result.cases > 0;
  printf("%-26s %-8s %s  %4lld cases, largest error %.2f of its bound\n", op, target,
         ok ? "ok    " : "FAILED", static_cast<long long>(result.cases), result.worst);
  if (result.failures > 0)
    printf("    %lld errors; first: %s\n", static_cast<long long>(result.failures), result.first.c_str());
  if (result.cases == 0) printf("    no case ran\n");
  fflush(stdout);
  failures += ok ? 0 : 1;
  cases += result.cases;
}

#if defined(ARMLLM_EMULATED_X86)
bool cpu_has(const std::string&) { return true; }
#else
bool cpu_has(const std::string& feature) { return armllm::cpu_has(feature); }
#endif

bool usable(const armllm::Target& target) {
  bool all = target.compiled;
  for (const char* feature : target.features) all = all && cpu_has(feature);
  return all;
}

int usage(const char* problem) {
  fprintf(stderr, "%s\nusage: conformance [--target NAME]... [--op NAME]... [--chosen] [--list] [--seed N]\n",
          problem);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  std::set<std::string> only_targets, only_ops;
  uint64_t seed = 1;
  bool list = false, only_chosen = false;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (option == "--list" || option == "--chosen") {
      (option == "--list" ? list : only_chosen) = true;
      continue;
    }
    if (option != "--target" && option != "--op" && option != "--seed") {
      return usage(("unknown option " + option).c_str());
    }
    if (value == nullptr) return usage((option + " needs a value").c_str());
    ++i;
    if (option == "--target") only_targets.insert(value);
    if (option == "--op") only_ops.insert(value);
    if (option == "--seed") {
      char* end = nullptr;
      seed = strtoull(value, &end, 10);
      if (*value == '\0' || *end != '\0') return usage("--seed needs a number");
    }
  }

  std::set<std::string> targets, ops = {"dispatch", "threads", "rejects", "exp"};
  for (const armllm::Target& target : armllm::targets()) targets.insert(target.name);
  for (const conformance::NamedTest& test : conformance::op_tests()) {
    ops.insert(test.op);
    if (test.driver != nullptr) ops.insert(test.driver);
  }
  for (const std::string& target : only_targets)
    if (targets.count(target) == 0) return usage(("unknown target " + target).c_str());
  for (const std::string& op : only_ops)
    if (ops.count(op) == 0) return usage(("unknown op " + op).c_str());
  const auto wanted = [&](const char* name) { return only_ops.empty() || only_ops.count(name) != 0; };

  for (int op = 0; op < armllm::kOpCount; ++op) {
    if (ops.count(armllm::op_name(static_cast<armllm::Op>(op))) == 0) {
      printf("no test for op %s\n", armllm::op_name(static_cast<armllm::Op>(op)));
      ++failures;
    }
  }

  const armllm::Choice best = armllm::choose("", cpu_has);
  for (const armllm::Target& target : armllm::targets()) {
    if (!only_targets.empty() && only_targets.count(target.name) == 0) continue;
    if (!usable(target)) {
      printf("%-26s %-8s not run: %s\n", "-", target.name,
             target.compiled ? "this CPU lacks its features" : "not compiled in");
      if (!only_targets.empty()) return 1;
      continue;
    }
    constexpr int kAnyLength = 2048;
    const armllm::Choice choice = armllm::choose(target.name, cpu_has, kAnyLength);
    for (const conformance::NamedTest& test : conformance::op_tests()) {
      const char* name = test.driver == nullptr ? test.op : test.driver;
      if (!wanted(name)) continue;
      for (const armllm::Op op : target.ops) {
        if (std::string(armllm::op_name(op)) != test.op) continue;
        const bool is_chosen = best.target[static_cast<size_t>(op)] == target.name;
        if (only_chosen && !is_chosen) continue;
        if (list) {
          printf("%-26s %-8s%s\n", name, target.name, is_chosen ? " chosen here" : "");
          continue;
        }
        report(name, target.name, test.test({choice.table, seed}));
      }
    }
  }
  if (list) return 0;
  if (wanted("dispatch")) report("dispatch", "-", conformance::test_dispatch());
  if (only_targets.empty()) {
    if (wanted("threads")) {
      report("threads", armllm::thread_backend(), conformance::test_threads(seed));
      report("thread counts", armllm::thread_backend(), conformance::test_thread_counts(seed));
    }
    if (wanted("rejects")) report("rejects", "-", conformance::test_rejects());
    if (wanted("exp")) report("exp", "-", conformance::test_exp());
  }
  printf("%lld cases, %lld failures (seed %llu)\n", static_cast<long long>(cases),
         static_cast<long long>(failures), static_cast<unsigned long long>(seed));
  return failures == 0 && cases > 0 ? 0 : 1;
}
