// Declares LibTorch's element type without LibTorch's headers: torch::kFloat32, torch::kBFloat16, …
#pragma once

#include <cstdint>

namespace c10 {
enum class ScalarType : int8_t;
}
