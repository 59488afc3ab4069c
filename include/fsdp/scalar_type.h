// Declares LibTorch's element type (torch::kFloat32, torch::kBFloat16, …) without LibTorch's
// headers.
#pragma once

#include <cstdint>

namespace c10 {
enum class ScalarType : int8_t;
}
