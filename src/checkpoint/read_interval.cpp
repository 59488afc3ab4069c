#include "checkpoint/read_interval.h"

#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "fsdp/error.h"
#include "fsdp/program_text.h"

namespace fsdp {
namespace {

constexpr int64_t kPieceNumel = 1 << 20;
constexpr int64_t kPieceBytes = 8 << 20;

// Throws if a value is not finite as float32, even if it is finite as float64. `begin` is the
// index of the first value.
void check_finite(const WeightsFile& file, const MappedTensor& tensor, int64_t begin,
                  std::span<const float> values) {
  // The compiler vectorises this loop, because the loop does not stop at the first value that is
  // not finite. If there is such a value, find_if searches for it below.
  bool finite = true;
  for (const float value : values) finite &= std::abs(value) <= std::numeric_limits<float>::max();
  if (finite) return;
  const auto at =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  throw IoError(
      ExitCode::kCorruptData,
      {.what = fmt::format("tensor {} is not finite: element {} is {}", quoted_name(tensor.name),
                           begin + (at - values.begin()), *at),
       .where = file.path().string(),
       .hint = "load an earlier file: this file was saved with values that were not finite"});
}

// Returns true if the elements have the same order in the file and in the parameter's memory.
// Dimensions of size 1 are ignored, because their strides do not matter.
bool same_order(const MappedTensor& tensor, const MemoryInterval& interval) {
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != interval.strides[i]) return false;
  }
  return true;
}

std::span<const float> values_of(const at::Tensor& floats) {
  return {floats.const_data_ptr<float>(), static_cast<size_t>(floats.numel())};
}

// Passes the interval in chunks if the file has the parameter's order. Each chunk is first copied
// to a small aligned tensor, because the bytes of a file may have any address.
void read_in_order(const WeightsFile& file, const MappedTensor& tensor,
                   const MemoryInterval& interval, const TakeValues& take) {
  const int64_t item_bytes = bits_of(tensor.dtype) / 8;
  const int64_t most = std::min(interval.numel, kPieceNumel);
  // The optional has a value, because match_weights accepts only floating types.
  const at::Tensor stored = at::empty({most}, *scalar_type_of(tensor.dtype));
  // F32 needs no conversion, and therefore no second tensor.
  const at::Tensor floats =
      tensor.dtype == StoredDType::kF32 ? stored : at::empty({most}, at::kFloat);
  for (int64_t done = 0; done < interval.numel; done += most) {
    const int64_t count = std::min(most, interval.numel - done);
    const auto bytes = tensor.bytes.subspan(
        static_cast<size_t>((interval.begin + done) * item_bytes), count * item_bytes);
    std::memcpy(stored.mutable_data_ptr(), bytes.data(), bytes.size());
    // The values were copied, so the pages are released. If they stayed, the pages of a whole model
    // would count as memory of this process.
    file.forget(bytes);
    const at::Tensor values = floats.narrow(0, 0, count);
    if (!floats.is_same(stored)) values.copy_(stored.narrow(0, 0, count));
    check_finite(file, tensor, interval.begin + done, values_of(values));
    take(done, values_of(values));
  }
}

// Visits the tensor in the order of its bytes, so that each page is read only once. Stores the
// elements of the interval at their indices in `to`.
template <class Stored>
void scatter(const WeightsFile& file, const MappedTensor& tensor, const MemoryInterval& interval,
             float* to) {
  const std::vector<int64_t>& strides = tensor.strides;
  std::vector<size_t> order(tensor.shape.size());  // outermost first
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return strides[a] > strides[b]; });
  std::vector<int64_t> index(order.size());
  // `from` is the index of the element in the file. `place` is the index of the same element in the
  // interval.
  int64_t from = 0, place = -interval.begin, forgotten = 0;
  while (true) {
    if (place >= 0 && place < interval.numel) {
      Stored value;
      std::memcpy(&value, tensor.bytes.data() + from * sizeof value, sizeof value);
      to[place] = static_cast<float>(value);
    }
    if (const int64_t read = (from - forgotten) * static_cast<int64_t>(sizeof(Stored));
        read >= kPieceBytes) {
      file.forget(tensor.bytes.subspan(forgotten * sizeof(Stored), read));
      forgotten = from;
    }
    // Advances the index of the innermost dimension. An index that reaches the end of its dimension
    // restarts at 0, and the index of the next outer dimension advances.
    size_t i = order.size();
    while (i-- > 0) {
      const size_t dim = order[i];
      from += strides[dim];
      place += interval.strides[dim];
      if (++index[dim] < tensor.shape[dim]) break;
      from -= strides[dim] * tensor.shape[dim];
      place -= interval.strides[dim] * tensor.shape[dim];
      index[dim] = 0;
    }
    if (i > order.size()) break;  // i wrapped around, because the outermost dimension has ended
  }
  file.forget(tensor.bytes.subspan(forgotten * sizeof(Stored)));
}

void read_in_other_order(const WeightsFile& file, const MappedTensor& tensor,
                         const MemoryInterval& interval, const TakeValues& take) {
  // The elements are read in another order than that of the interval, so the whole interval is kept
  // in memory.
  const at::Tensor values = at::empty({interval.numel}, at::kFloat);
  auto* to = values.mutable_data_ptr<float>();
  switch (tensor.dtype) {
    case StoredDType::kF16:
      scatter<c10::Half>(file, tensor, interval, to);
      break;
    case StoredDType::kBF16:
      scatter<c10::BFloat16>(file, tensor, interval, to);
      break;
    case StoredDType::kF64:
      scatter<double>(file, tensor, interval, to);
      break;
    // F32 is the only remaining type, because matching accepts only floating types.
    default:
      scatter<float>(file, tensor, interval, to);
      break;
  }
  check_finite(file, tensor, interval.begin, values_of(values));
  take(0, values_of(values));
}

}  // namespace

void read_interval(const WeightsFile& file, const MappedTensor& tensor,
                   const MemoryInterval& interval, const TakeValues& take) {
  if (interval.numel == 0) return;
  if (same_order(tensor, interval)) return read_in_order(file, tensor, interval, take);
  read_in_other_order(file, tensor, interval, take);
}

}  // namespace fsdp
