#include "kernels/strided.h"

#include <doctest/doctest.h>
#include <fsdp/error.h>

#include <string>

#include "kernels/accumulate.h"
#include "kernels/cast_pack.h"
#include "kernels/support/elements.h"
#include "kernels/support/streams.h"

namespace fsdp::kernels {
namespace {

using test::Elements;

struct Shape {
  const char* name;
  std::vector<int64_t> sizes, strides;
  int64_t storage_numel;
  int64_t first = 0;  // offset of index (0, …, 0)
};

const std::vector<Shape> kShapes{
    {"scalar", {}, {}, 1},
    {"contiguous", {5, 7}, {7, 1}, 35},
    {"transposed", {129, 67}, {1, 129}, 129 * 67},
    {"large transposed", {259, 1019}, {1, 259}, 259 * 1019},
    {"expanded", {4, 33}, {0, 1}, 33},
    {"expanded along the last", {33, 40}, {1, 0}, 33},
    {"every third", {100}, {3}, 298},
    {"rows of a wider matrix", {9, 5}, {11, 1}, 93},
    {"columns of a wider matrix", {9, 5}, {22, 2}, 185},
    {"backwards", {50}, {-1}, 50, 49},
    {"channels last", {2, 3, 4, 5}, {60, 1, 15, 3}, 120},
    {"channels last, wide", {2, 70, 8, 9}, {5040, 1, 630, 70}, 10080},
    {"permuted by three", {6, 34, 40}, {1, 240, 6}, 8160},
    {"size one in between", {3, 1, 4}, {4, 99, 1}, 12},
    {"eight dimensions", {2, 3, 2, 2, 3, 2, 2, 3}, {1, 2, 6, 12, 24, 72, 144, 288}, 864},
    {"none", {3, 0, 4}, {4, 4, 1}, 12},
};

StridedSource source_of(const Shape& shape, const Elements& storage) {
  StridedSource source;
  source.data =
      static_cast<const uint8_t*>(storage.data()) + shape.first * size_of(storage.dtype());
  source.dtype = storage.dtype();
  source.dims = static_cast<int>(shape.sizes.size());
  std::copy(shape.sizes.begin(), shape.sizes.end(), source.sizes.begin());
  std::copy(shape.strides.begin(), shape.strides.end(), source.strides.begin());
  return source;
}

// Returns the storage offset of the element that the destination stores at `position`.
int64_t offset_of(const Shape& shape, int64_t position) {
  int64_t offset = shape.first;
  for (size_t dim = shape.sizes.size(); dim-- > 0;) {
    offset += position % shape.sizes[dim] * shape.strides[dim];
    position /= shape.sizes[dim];
  }
  return offset;
}

TEST_CASE("strided sources are packed in the destination's order, for every pair of dtypes") {
  test::on_each_stream([](Stream& stream) {
    for (const Shape& shape : kShapes) {
      for (const DType from : test::kElementTypes) {
        for (const DType to : test::kElementTypes) {
          if (shape.storage_numel > 100000 && from != to) continue;
          CAPTURE(shape.name);
          CAPTURE(name_of(from));
          CAPTURE(name_of(to));
          Elements storage(from, shape.storage_numel);
          test::fill_with_values(storage, 4, true);
          const StridedSource source = source_of(shape, storage);
          Elements copied(to, source.numel());
          Elements added(to, source.numel());
          test::fill_with_values(added, 5, false);
          Elements expected_sum = added;
          cast_pack_strided(stream, source, copied.data(), to, 0.75F);
          accumulate_strided(stream, source, added.data(), to, 0.75F);
          stream.synchronize();
          int64_t wrong = 0;
          for (int64_t i = 0; i < source.numel(); ++i) {
            const float value = storage.get(offset_of(shape, i)) * 0.75F;
            Elements expected(to, 1);
            expected.set(0, value);
            expected_sum.set(i, expected_sum.get(i) + value);
            wrong += !test::same(copied.get(i), expected.get(0));
            wrong += !test::same(added.get(i), expected_sum.get(i));
          }
          CHECK(wrong == 0);
          CHECK(copied.guard_is_intact());
          CHECK(added.guard_is_intact());
        }
      }
    }
  });
}

template <class Word>
int64_t wrong_copies(DType dtype, const Shape& shape) {
  std::vector<Word> storage(static_cast<size_t>(shape.storage_numel));
  for (size_t i = 0; i < storage.size(); ++i) storage[i] = static_cast<Word>(i * 2654435761U);
  StridedSource source = source_of(shape, Elements(dtype, 0));
  source.data = storage.data() + shape.first;
  std::vector<Word> copied(static_cast<size_t>(source.numel()));
  const auto stream = test::make_stream("cast");
  cast_pack_strided(*stream, source, copied.data(), dtype);
  int64_t wrong = 0;
  for (int64_t i = 0; i < source.numel(); ++i) {
    wrong += copied[static_cast<size_t>(i)] != storage[static_cast<size_t>(offset_of(shape, i))];
  }
  return wrong;
}

TEST_CASE("strided sources of every width are copied when the dtypes are equal") {
  for (const Shape& shape : kShapes) {
    CAPTURE(shape.name);
    CHECK(wrong_copies<uint8_t>(DType::kUInt8, shape) == 0);
    CHECK(wrong_copies<uint16_t>(DType::kFloat16, shape) == 0);
    CHECK(wrong_copies<uint32_t>(DType::kInt32, shape) == 0);
    CHECK(wrong_copies<uint64_t>(DType::kFloat64, shape) == 0);
  }
}

TEST_CASE("a source of too many dimensions is refused with the number") {
  const auto stream = test::make_stream("cast");
  StridedSource source;
  source.dims = 9;
  CHECK_THROWS_WITH_AS(cast_pack_strided(*stream, source, nullptr, DType::kFloat32),
                       "cast_pack_strided got a source of 9 dimensions, expected at most 8; hint: "
                       "make the tensor contiguous first",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(accumulate_strided(*stream, source, nullptr, DType::kFloat32),
                       "accumulate_strided got a source of 9 dimensions, expected at most 8; hint: "
                       "make the tensor contiguous first",
                       InvalidArgument);
}

}  // namespace
}  // namespace fsdp::kernels
