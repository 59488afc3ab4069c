#include "kernels/element/block_index.h"

#include <doctest/doctest.h>

#include <vector>

#include "kernels/cuda/stretch.h"

namespace fsdp::kernels {
namespace {

TEST_CASE("the threads of a block have all its elements, each once, whatever the width") {
  for (const int width : {1, 2, 4, 8, 16}) {
    CAPTURE(width);
    for (const int64_t block : {int64_t{0}, int64_t{1}, kMostBlocks}) {
      std::vector<int> seen(kBlockNumel);
      for (int iteration = 0; iteration < kBlockNumel / (kBlockThreads * width); ++iteration) {
        for (int thread = 0; thread < kBlockThreads; ++thread) {
          const int64_t first = element_of(block, thread, iteration, width);
          for (int i = 0; i < width; ++i) ++seen.at(first + i - block * kBlockNumel);
        }
      }
      CHECK(seen == std::vector<int>(kBlockNumel, 1));
    }
  }
}

TEST_CASE("indices beyond 32 bits are exact, and blocks enough for them") {
  const int64_t two31 = int64_t{1} << 31, two33 = int64_t{1} << 33;
  for (const int64_t element : {two31 - 1, two31, two31 + 1, two33 - 1, two33, two33 + 1}) {
    CAPTURE(element);
    for (const int width : {1, 4, 16}) {
      const int64_t block = element / kBlockNumel;
      const int within = static_cast<int>(element % kBlockNumel) / width;
      const int64_t first =
          element_of(block, within % kBlockThreads, within / kBlockThreads, width);
      CHECK(first == element / width * width);
    }
    CHECK(blocks_for(element) * kBlockNumel >= element);
    CHECK((blocks_for(element) - 1) * kBlockNumel < element);
  }
  CHECK(blocks_for(0) == 0);
  const int64_t block = two33 / 1024;
  CHECK(norm_element_of(norm_block_of(block / kNormBlocksTogether, 7), 7, 127) == two33 + 1023);
}

TEST_CASE("arrays have vectors in common if they are as far from a boundary, in elements") {
  alignas(64) static char memory[256];
  const auto skew = [](int width, std::initializer_list<cuda::Array> arrays) {
    return cuda::stretch_of(100, width, arrays).skew;
  };
  CHECK(skew(4, {{memory, 4}, {memory + 64, 2}}) == 0);
  CHECK(skew(4, {{memory + 4, 4}, {memory + 66, 2}}) == 1);
  CHECK(skew(4, {{memory + 12, 4}, {nullptr, 2}}) == 3);
  CHECK(skew(4, {{memory + 4, 4}, {memory + 64, 2}}) == cuda::Stretch::kNoVectors);
  CHECK(skew(16, {{memory + 5, 1}, {memory + 21, 1}}) == 5);
  CHECK(cuda::Stretch{4096, 0}.blocks() == 1);
  CHECK(cuda::Stretch{4096, 3}.blocks() == 2);
  CHECK(cuda::Stretch{4096, cuda::Stretch::kNoVectors}.blocks() == 1);
  CHECK(cuda::Stretch{0, 0}.blocks() == 0);
}

}  // namespace
}  // namespace fsdp::kernels
