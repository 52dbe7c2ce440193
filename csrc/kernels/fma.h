// Every kernel that needs nothing but the primitives, in the order of their dependence.

// clang-format off
#include "kernels/exp.h"
#include "kernels/tanh.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"
#include "kernels/activation.h"
#include "kernels/kv_slots.h"
#include "kernels/kv_cache.h"
#include "kernels/softmax.h"
#include "kernels/attention_tiles.h"
#include "kernels/attention.h"
#include "kernels/quantize.h"
#include "kernels/dense.h"
#include "kernels/panels.h"
#include "kernels/weighted_sum.h"
#include "kernels/entries.h"
// clang-format on
