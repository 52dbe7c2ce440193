// Every kernel that needs nothing but the primitives.

#pragma once

#include "kernels/exp.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/entries.h"
#include "kernels/fp8.h"
#include "kernels/lora.h"
#include "kernels/norm.h"
#include "kernels/panels.h"
#include "kernels/quantize.h"
#include "kernels/recurrence.h"
#include "kernels/rotary.h"
#include "kernels/sampling.h"
#include "kernels/weighted_sum.h"
