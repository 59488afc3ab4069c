// Compares this library with Python's safetensors: with a recorded file, and live if .venv exists.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/safetensors.h>

#include <algorithm>

#include "io/safetensors_header.h"
#include "support/safetensors_bytes.h"
#include "support/scratch_folder.h"
#include "support/source_tree.h"

namespace fsdp {
namespace {

std::string hex_of(std::span<const std::byte> bytes) {
  std::string hex;
  for (const std::byte byte : bytes) hex += fmt::format("{:02x}", static_cast<int>(byte));
  return hex;
}

// Returns the lines that `safetensors_peer.py list` prints for this file.
std::vector<std::string> lines_of(const SafetensorsFile& file) {
  std::vector<const StoredTensor*> sorted;
  for (const StoredTensor& tensor : file.tensors()) sorted.push_back(&tensor);
  std::ranges::sort(sorted, {}, [](const StoredTensor* tensor) { return tensor->name; });
  std::vector<std::string> lines;
  for (const StoredTensor* tensor : sorted) {
    lines.push_back(fmt::format("{} {} [{}] {}", hex_of(bytes_of(tensor->name)),
                                name_of(tensor->dtype), fmt::join(tensor->shape, ","),
                                hex_of(file.bytes(*tensor))));
  }
  return lines;
}

// Returns the output of safetensors_peer.py, or nothing if that Python does not exist.
std::vector<std::string> peer(const std::string& arguments) {
  return python_lines("tests/io/safetensors_peer.py", arguments);
}

TEST_CASE("A file that Python wrote is read with its types, shapes and bytes") {
  const SafetensorsFile file(source_file("tests/io/records/safetensors_peer.safetensors"));
  CHECK(file.tensors().size() == 37);
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
  REQUIRE(file.find("float16.matrix") != nullptr);
  const StoredTensor& half = *file.find("float16.matrix");
  CHECK(half.dtype == StoredDType::kF16);
  CHECK(half.shape == std::vector<int64_t>{3, 5});
  CHECK(hex_of(file.bytes(half)) == "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d");
  CHECK(file.find("float64.scalar")->shape.empty());
  CHECK(file.find("bool.empty")->nbytes == 0);
  CHECK(file.find("quote \" backslash \\ é 𐍈") != nullptr);
}

TEST_CASE("Writing what was read gives Python's file byte by byte") {
  const auto original = source_file("tests/io/records/safetensors_peer.safetensors");
  const SafetensorsFile file(original);
  std::vector<TensorSpec> specs(file.tensors().rbegin(), file.tensors().rend());
  const ScratchFolder folder;
  SafetensorsWriter writer(folder / "copy", specs, file.metadata());
  for (const StoredTensor& tensor : file.tensors()) writer.append(tensor.name, file.bytes(tensor));
  writer.commit();
  CHECK(read_whole(folder / "copy") == read_whole(original));
}

TEST_CASE("Python and we list the same for files that either wrote") {
  const ScratchFolder folder;
  const auto theirs = (folder / "theirs").string();
  peer("write " + theirs);
  const auto listed = peer("list " + theirs);
  if (listed.empty()) {
    MESSAGE("skipped: there is no .venv with Python's safetensors; the record stands for it");
    return;
  }
  CHECK(listed == lines_of(SafetensorsFile(theirs)));
  CHECK(read_whole(theirs) ==
        read_whole(source_file("tests/io/records/safetensors_peer.safetensors")));

  std::vector<TensorSpec> specs;
  for (int d = 0; d <= static_cast<int>(StoredDType::kU64); ++d) {
    const auto dtype = static_cast<StoredDType>(d);
    const std::string name(name_of(dtype));
    specs.push_back({name + " \"matrix\" \\ \n é", dtype, {3, 4}});
    specs.push_back({name + ".empty", dtype, {0}});
    if (bits_of(dtype) >= 8) specs.push_back({name + ".scalar", dtype, {}});
  }
  SafetensorsWriter writer(folder / "ours", specs, {{"format", "pt"}, {"other", "\"\\\n"}});
  for (const TensorSpec& spec : specs) {
    const auto size = static_cast<size_t>(count_elements(spec.dtype, spec.shape)->nbytes);
    std::vector<std::byte> bytes(size);
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i % 2);
    writer.append(spec.name, bytes);
  }
  writer.commit();
  CHECK(peer("list " + (folder / "ours").string()) == lines_of(SafetensorsFile(folder / "ours")));
}

}  // namespace
}  // namespace fsdp
