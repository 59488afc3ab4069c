#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/run_over_table.h"

namespace fsdp::kernels::cpu {
namespace {

// The quiet NaNs with positive sign and no payload.
constexpr uint16_t kBFloat16Nan = 0x7fc0;
constexpr uint16_t kFloat16Nan = 0x7e00;

void fill_run_with_nan(const FillRun& run) {
  switch (run.dtype) {
    case DType::kFloat64:
      std::fill_n(static_cast<double*>(run.data), run.numel,
                  std::numeric_limits<double>::quiet_NaN());
      return;
    case DType::kFloat32:
      std::fill_n(static_cast<float*>(run.data), run.numel,
                  std::numeric_limits<float>::quiet_NaN());
      return;
    default:
      std::fill_n(static_cast<uint16_t*>(run.data), run.numel,
                  run.dtype == DType::kBFloat16 ? kBFloat16Nan : kFloat16Nan);
  }
}

}  // namespace

void fill_zero(Stream& stream, std::span<const FillRun> runs) {
  run_over_table(stream, runs, [](std::span<const FillRun> table) {
    for (const FillRun& run : table) {
      if (run.numel == 0) continue;  // memset is undefined for null, which an empty run may have
      std::memset(run.data, 0, static_cast<size_t>(run.numel * size_of(run.dtype)));
    }
  });
}

void fill_nan(Stream& stream, std::span<const FillRun> runs) {
  run_over_table(stream, runs, [](std::span<const FillRun> table) {
    for (const FillRun& run : table) fill_run_with_nan(run);
  });
}

}  // namespace fsdp::kernels::cpu
