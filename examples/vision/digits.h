// Images of handwritten digits, from a file that data/README.md describes.
#pragma once

#include <ATen/ATen.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "own_flags.h"

struct Digits {
  at::Tensor images;  // [N, 8, 8], float32 from 0 to 1
  at::Tensor labels;  // [N], int64 from 0 to 9
  int64_t count() const { return labels.size(0); }
  Digits slice(int64_t begin, int64_t end) const {
    return {images.slice(0, begin, end), labels.slice(0, begin, end)};
  }
  Digits picked(const std::vector<int64_t>& samples) const {
    const at::Tensor rows = at::tensor(samples, labels.options());
    return {images.index_select(0, rows), labels.index_select(0, rows)};
  }
};

inline Digits read_digits(const std::string& path, int64_t least) {
  std::ifstream file(path, std::ios::binary);
  file.peek();  // a folder can be opened but not read
  if (!file) refuse(fsdp::ExitCode::kIoError, "cannot read " + path, "pass a readable --data");
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  constexpr int64_t kPixels = 64;
  const int64_t count = std::ssize(bytes) / (kPixels + 1);
  const at::Tensor rows =
      at::from_blob(bytes.data(), {count, kPixels + 1}, at::kByte).to(at::kLong);
  Digits digits{.images = rows.slice(1, 0, kPixels).reshape({count, 8, 8}).to(at::kFloat) / 16,
                .labels = rows.select(1, kPixels).clone()};
  const bool is_whole = count >= least && std::ssize(bytes) % (kPixels + 1) == 0;
  if (is_whole && digits.images.le(1).all().item<bool>() && digits.labels.le(9).all().item<bool>())
    return digits;
  refuse(fsdp::ExitCode::kCorruptData, path + " is not a file of digits",
         "use " + std::to_string(least) +
             " or more rows of 65 bytes: pixels from 0 to 16, a label from 0 to 9");
}
