#include "programs/row_major_reader.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "io/weights_file.h"

namespace fsdp {
namespace {

constexpr int64_t kPieceBytes = 8 << 20;
constexpr int64_t kBoxBytes = 64 << 20;
// The elements of a box are read by this many bytes at a time. More bytes would be read in vain if
// the elements are far apart, and fewer bytes would cost more calls if they are not.
constexpr int64_t kWindowBytes = 16 << 10;

// A dimension of a box of elements. The strides are those in the tensor and in the box.
struct BoxDimension {
  int64_t size = 0;
  int64_t tensor_stride = 0;
  int64_t box_stride = 0;
};

bool is_row_major(const TensorView& view) {
  const std::vector<int64_t> expected = row_major(view.shape);
  for (size_t i = 0; i < expected.size(); ++i) {
    // The stride of a dimension of size 1 has no effect.
    if (view.shape[i] != 1 && view.strides[i] != expected[i]) return false;
  }
  return true;
}

// Copies a box of elements to `to`. `first` is the tensor's index of the first element. The
// elements are visited in the tensor's memory order, so that each window is read once.
template <class Item>
void read_box(CheckpointTensors& from, int64_t tensor, int64_t first,
              std::vector<BoxDimension> dimensions, Item* to) {
  std::ranges::sort(dimensions, std::ranges::greater(), &BoxDimension::tensor_stride);
  int64_t end = first + 1;
  for (const BoxDimension& each : dimensions) end += (each.size - 1) * each.tensor_stride;
  std::vector<Item> window(static_cast<size_t>(kWindowBytes) / sizeof(Item));
  int64_t window_begin = 0, window_end = 0;
  std::vector<int64_t> index(dimensions.size());
  int64_t element = first, place = 0;
  while (true) {
    if (element >= window_end) {
      window_begin = element;
      window_end = std::min(end, element + std::ssize(window));
      const auto count = static_cast<size_t>(window_end - window_begin);
      from.read(tensor, window_begin, std::as_writable_bytes(std::span(window).first(count)));
    }
    to[place] = window[static_cast<size_t>(element - window_begin)];
    // Advances the index of the innermost dimension. An index that reaches the end of its dimension
    // restarts at 0, and the index of the next outer dimension advances.
    size_t i = dimensions.size();
    while (i-- > 0) {
      const BoxDimension& each = dimensions[i];
      element += each.tensor_stride;
      place += each.box_stride;
      if (++index[i] < each.size) break;
      element -= each.tensor_stride * each.size;
      place -= each.box_stride * each.size;
      index[i] = 0;
    }
    if (i > dimensions.size()) return;  // i wrapped around: the outermost dimension has ended
  }
}

// Passes the view in boxes that are consecutive in row-major order. A box has a range of dimension
// `cut`, all of the dimensions after it, and one index of each dimension before it.
template <class Item>
void read_in_boxes(CheckpointTensors& from, const TensorView& view,
                   const std::function<void(std::span<const std::byte> piece)>& take) {
  constexpr int64_t kMostNumel = kBoxBytes / static_cast<int64_t>(sizeof(Item));
  size_t cut = view.shape.size() - 1;
  int64_t inner = 1;  // elements of the dimensions after `cut`
  while (cut > 0 && view.shape[cut] <= kMostNumel / inner) inner *= view.shape[cut--];
  const int64_t rows = std::clamp<int64_t>(kMostNumel / inner, 1, view.shape[cut]);
  const std::vector<int64_t> strides = row_major(view.shape);
  std::vector<Item> box(static_cast<size_t>(rows * inner));
  std::vector<BoxDimension> dimensions;
  for (size_t i = cut; i < view.shape.size(); ++i) {
    dimensions.push_back({view.shape[i], view.strides[i], strides[i]});
  }
  const int64_t outer = view.numel() / (view.shape[cut] * inner);
  for (int64_t i = 0; i < outer; ++i) {
    int64_t first = 0, rest = i;
    for (size_t dim = cut; dim-- > 0; rest /= view.shape[dim]) {
      first += rest % view.shape[dim] * view.strides[dim];
    }
    for (int64_t row = 0; row < view.shape[cut]; row += rows) {
      dimensions.front().size = std::min(rows, view.shape[cut] - row);
      read_box(from, view.index, first + row * view.strides[cut], dimensions, box.data());
      const auto count = static_cast<size_t>(dimensions.front().size * inner);
      take(std::as_bytes(std::span(box).first(count)));
    }
  }
}

}  // namespace

int64_t TensorView::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

void read_row_major(CheckpointTensors& from, const TensorView& view,
                    const std::function<void(std::span<const std::byte> piece)>& take) {
  const int64_t numel = view.numel();
  if (numel == 0) return;
  const StoredDType dtype = from.manifest().tensors[static_cast<size_t>(view.index)].dtype;
  const int64_t item = bits_of(dtype) / 8;
  if (!is_row_major(view)) {
    switch (item) {
      case 1:
        return read_in_boxes<uint8_t>(from, view, take);
      case 2:
        return read_in_boxes<uint16_t>(from, view, take);
      case 4:
        return read_in_boxes<uint32_t>(from, view, take);
      default:
        return read_in_boxes<uint64_t>(from, view, take);
    }
  }
  const int64_t most = std::min(numel, kPieceBytes / item);
  std::vector<std::byte> piece(static_cast<size_t>(most * item));
  for (int64_t begin = 0; begin < numel; begin += most) {
    const int64_t count = std::min(most, numel - begin);
    const std::span<std::byte> part = std::span(piece).first(static_cast<size_t>(count * item));
    from.read(view.index, begin, part);
    take(part);
  }
}

}  // namespace fsdp
