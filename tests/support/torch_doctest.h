// torch first, doctest after: c10 defines CHECK… macros that doctest must win. The one test header
// that sees both; it is precompiled.
#pragma once
#include <torch/torch.h>
#undef CHECK
#undef CHECK_EQ
#undef CHECK_NE
#undef CHECK_LE
#undef CHECK_LT
#undef CHECK_GE
#undef CHECK_GT
#include <doctest/doctest.h>
