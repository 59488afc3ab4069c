// Includes torch before doctest, because c10 defines CHECK… macros and doctest's macros must win.
// This precompiled header is the only test header that includes both.
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
