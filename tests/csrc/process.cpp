// What belongs to no single op: the choice of targets, the drivers' refusals, exp.

#include <stdlib.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "support.h"
#include "targets/target.h"

namespace conformance {

// exp.h in plain C++; and in NEON where that is what runs.
namespace plain {
#define ARMLLM_LANES 1
#include "simd/scalar.h"
#include "kernels/exp.h"
#undef ARMLLM_LANES
}  // namespace plain
#if defined(__aarch64__)
}  // namespace conformance
#include <arm_neon.h>
namespace conformance {
namespace neon {
#include "simd/neon.h"
#include "kernels/exp.h"
}  // namespace neon
#endif

namespace {

float exp_plain(float x) {
  float result;
  plain::store(&result, plain::exp(plain::splat(x)));
  return result;
}
float power_plain(float x, float base) {
  float result;
  plain::store(&result, plain::power_of_two(plain::splat(x), base));
  return result;
}

void check_exp(Result& result, const char* what, float (*function)(float)) {
  // Every 20011th float, both signs; 20011 is prime, so that all last digits occur.
  for (uint32_t bits = 0; bits < 0x7f800000u; bits += 20011) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const uint32_t both = bits | sign;
      float x;
      memcpy(&x, &both, sizeof x);
      const double exact = ::exp(static_cast<double>(x)), got = static_cast<double>(function(x));
      if (x > -87.3f && x < 88.3f) {
        int exponent;
        frexp(exact, &exponent);
        const double unit = ldexp(1.0, exponent - 24);
        const double bound = 2.5 * unit + kExpArgumentError * fabs(static_cast<double>(x)) * exact;
        result.compare(got, exact, bound, what, static_cast<int64_t>(bits), sign == 0 ? 1 : -1);
      } else if (x < -88.0f ? got != 0 : x > 88.4f ? got != static_cast<double>(INFINITY) : false) {
        result.fail(std::string(what) + ": exp(" + std::to_string(x) + ") is " + std::to_string(got));
      }
    }
  }
  if (!isnan(function(NAN))) result.fail(std::string(what) + ": exp(NaN) is a number");
  if (function(-INFINITY) != 0) result.fail(std::string(what) + ": exp(-infinity) is not 0");
  if (function(INFINITY) != INFINITY) result.fail(std::string(what) + ": exp(infinity) is finite");
  if (function(0.0f) != 1 || function(-0.0f) != 1) result.fail(std::string(what) + ": exp(0) is not 1");
  ++result.cases;
}

// Bases up to the largest that exp.h allows.
void check_power(Result& result, const char* what, float (*function)(float, float)) {
  for (const float base : {0.0f, 1.0f, -17.0f, 1000.0f, -0x1p21f, 0x1p21f}) {
    for (int i = 0; i <= 130 * 1024; ++i) {
      const float x = base - static_cast<float>(i) / 1024;
      const double difference = static_cast<double>(x) - static_cast<double>(base), exact = exp2(difference);
      const double got = static_cast<double>(function(x, base));
      const double unit = ldexp(1.0, static_cast<int>(floor(difference)) - 23);
      if (difference >= -126) {
        result.compare(got, exact, 2.5 * unit, what, i, static_cast<int64_t>(base));
      } else if (difference < -126.5 ? got != 0 : fabs(got - exact) > 0x1p-126) {
        result.fail(std::string(what) + ": 2^" + std::to_string(difference) + " is " + std::to_string(got));
      }
    }
    if (function(base, base) != 1) result.fail(std::string(what) + ": 2^0 is not 1");
    if (function(-INFINITY, base) != 0) result.fail(std::string(what) + ": 2^-infinity is not 0");
    if (!isnan(function(NAN, base))) result.fail(std::string(what) + ": 2^NaN is a number");
  }
  ++result.cases;
}

#if defined(__aarch64__)
float exp_neon(float x) {
  float result[4];
  neon::store(result, neon::exp(neon::splat(x)));
  return result[0];
}
float power_neon(float x, float base) {
  float result[4];
  neon::store(result, neon::power_of_two(neon::splat(x), base));
  return result[0];
}
#endif

void check_choice(Result& result, const std::string& cap, bool (*has)(const std::string&), const char* cpu,
                  int vector_bits) {
  const std::vector<armllm::Target>& all = armllm::targets();
  const armllm::Choice choice = armllm::choose(cap, has, vector_bits);
  size_t last = all.size();
  for (size_t i = 0; i < all.size(); ++i) {
    if (cap == all[i].name) last = i + 1;
  }
  for (int op = 0; op < armllm::kOpCount; ++op) {
    const char* name = armllm::op_name(static_cast<armllm::Op>(op));
    std::string expected;
    for (size_t i = 0; i < last; ++i) {
      const bool is_power =
          vector_bits == 0 || vector_bits == 128 || vector_bits == 256 || vector_bits == 512;
      bool usable = all[i].compiled && vector_bits >= all[i].sve_bits && (all[i].sve_bits == 0 || is_power);
      for (const char* feature : all[i].features) usable = usable && has(feature);
      bool listed = false;
      for (const armllm::Op listed_op : all[i].ops) listed = listed || static_cast<int>(listed_op) == op;
      if (usable && listed) expected = all[i].name;
    }
    const std::string& got = choice.target[static_cast<size_t>(op)];
    if (got != expected) {
      result.fail(std::string(name) + " on " + cpu + " capped by '" + cap + "' uses " + got +
                  ", the table says " + expected);
    }
    if (choice.why[static_cast<size_t>(op)].empty()) result.fail(std::string("no reason for ") + name);
  }
  ++result.cases;
}

}  // namespace

Result test_exp() {
  Result result;
  check_exp(result, "plain", exp_plain);
  check_power(result, "plain", power_plain);
#if defined(__aarch64__)
  check_exp(result, "neon", exp_neon);
  check_power(result, "neon", power_neon);
#endif
  return result;
}

Result test_dispatch() {
  Result result;
  std::vector<std::string> caps = {"", "nonsense"};
  for (const armllm::Target& target : armllm::targets()) caps.emplace_back(target.name);
  for (const std::string& cap : caps) {
    for (const int bits : {0, 128, 256, 384, 512}) {
      check_choice(result, cap, armllm::cpu_has, "this CPU", bits);
      check_choice(result, cap, [](const std::string&) { return false; }, "a CPU without features", bits);
      check_choice(
          result, cap, [](const std::string& f) { return f == "asimd" || f == "avx2" || f == "fma"; },
          "an old CPU", bits);
      check_choice(result, cap, [](const std::string&) { return true; }, "a CPU with every feature", bits);
    }
  }
  if (armllm::choose("nonsense", armllm::cpu_has).problem.find("scalar") == std::string::npos) {
    result.fail("an unknown cap is not answered with the names there are");
  }
  for (const armllm::Target& target : armllm::targets()) {
    if (!armllm::choose(target.name, armllm::cpu_has).problem.empty())
      result.fail("a known cap is called unknown");
  }
  // No table entry may be empty, even where the CPU has nothing.
  const armllm::KernelTable least = armllm::choose("", [](const std::string&) { return false; }).table;
#define CHECK_ENTRY(type, name) \
  if (least.name == nullptr) result.fail("the scalar target lacks " #name);
  ARMLLM_OPS(CHECK_ENTRY)
#undef CHECK_ENTRY
  // What this process uses is what ARMLLM_ISA and the CPU give.
  const char* cap = getenv("ARMLLM_ISA");
  if (armllm::dispatched().target != armllm::choose(cap == nullptr ? "" : cap, armllm::cpu_has).target) {
    result.fail("the process's own choice is another");
  }
  ++result.cases;
  return result;
}

// Bad indices are refused with the argument's name, and nothing is written.
Result test_rejects() {
  constexpr auto kPlain = armllm::KvCacheType::plain;
  Result result;
  const armllm::KernelTable& table = armllm::dispatched().table;
  const auto refused = [&](const char* argument, auto call) {
    ++result.cases;
    try {
      call();
    } catch (const std::invalid_argument& error) {
      if (std::string(error.what()).find(argument) == std::string::npos) {
        result.fail(std::string("the refusal of ") + argument + " says: " + error.what());
      }
      return;
    }
    result.fail(std::string("a bad ") + argument + " was accepted");
  };
  const armllm::KvCacheShape shape{1, 8, 16};
  for (const armllm::KvCacheShape& bad :
       {armllm::KvCacheShape{0, 8, 16}, {1, 12, 16}, {1, 0, 16}, {1, 8, 24}, {1, 8, 0}}) {
    const char* name = bad.num_kv_heads == 0  ? "num_kv_heads"
                       : bad.block_size != 16 ? "block_size"
                                              : "head_dim";
    refused(name, [&] { armllm::kv_cache_layout(table, Storage::f32, kPlain, bad); });
  }
  const armllm::KvCacheLayout layout = armllm::kv_cache_layout(table, Storage::f32, kPlain, shape);
  Array<char> cache(2 * layout.block_bytes);
  Array<float> x(16), angles(8);
  for (const int64_t bad : {int64_t{32}, INT64_MAX}) {
    int64_t slots[2] = {0, bad};
    refused("slot_mapping[1]", [&] {
      armllm::write_kv_cache(table, Storage::f32, kPlain,
                             {x.data(), x.data(), cache.data(), slots, shape, layout, 2, 8, 8, 8, 8}, 2);
    });
  }
  int64_t twice[4] = {3, -1, 0, 3};
  refused("slot_mapping[3] is 3, as slot_mapping[0]", [&] {
    Array<float> four(32);
    armllm::write_kv_cache(table, Storage::f32, kPlain,
                           {four.data(), four.data(), cache.data(), twice, shape, layout, 4, 8, 8, 8, 8}, 2);
  });
  for (const int64_t bad : {int64_t{-1}, int64_t{1}, INT64_MIN}) {
    int64_t positions[2] = {0, bad};
    refused("positions[1]", [&] {
      armllm::rotary_embedding(
          table, Storage::f32,
          {positions, x.data(), x.data(), angles.data(), 2, 1, 1, 8, 8, 8, 8, 8, 8, 8, false}, 1);
    });
  }
  struct Bad {
    const char* argument;
    int32_t blocks[2], starts[3], lengths[2];
  };
  const Bad all[] = {
      {"query_start_loc[0]", {0, 1}, {1, 1, 2}, {1, 1}},  {"query_start_loc[1]", {0, 1}, {0, -1, 2}, {1, 3}},
      {"query_start_loc[2]", {0, 1}, {0, 1, 0}, {1, 1}},  {"query_start_loc[2]", {0, 1}, {0, 1, 3}, {1, 2}},
      {"seq_lens[1]", {0, 1}, {0, 1, 2}, {1, 0}},         {"seq_lens[0]", {0, 1}, {0, 1, 2}, {-5, 1}},
      {"seq_lens[1]", {0, 1}, {0, 1, 2}, {1, 17}},        {"block_tables[1, 0]", {0, 2}, {0, 1, 2}, {1, 1}},
      {"block_tables[0, 0]", {-1, 0}, {0, 1, 2}, {1, 1}}, {"seq_lens[1]", {0, 1}, {0, 1, 2}, {1, INT32_MAX}},
  };
  for (const Bad& bad : all) {
    refused(bad.argument, [&] {
      armllm::paged_attention(table, Storage::f32, kPlain, {x.data(),   x.data(),   cache.data(),
                                                            bad.blocks, bad.starts, bad.lengths,
                                                            shape,      layout,     2,
                                                            1,          1,          1,
                                                            8,          8,          8,
                                                            8,          1.0f,       INT64_MAX,
                                                            0,          false,      0,
                                                            nullptr,    nullptr},
                              2, 2);
    });
  }
  return result;
}

}  // namespace conformance
