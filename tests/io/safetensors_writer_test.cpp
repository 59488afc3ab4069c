#include <doctest/doctest.h>
#include <fsdp/safetensors.h>

#include <algorithm>
#include <numeric>

#include "fsdp/error.h"
#include "io/safetensors_header.h"
#include "runtime/dtype.h"
#include "support/safetensors_bytes.h"
#include "support/scratch_folder.h"

namespace fsdp {
namespace {

std::vector<std::byte> counting_bytes(int64_t size, int start) {
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(start + i * 7);
  return bytes;
}

int64_t size_of_spec(const TensorSpec& spec) {
  return count_elements(spec.dtype, spec.shape)->nbytes;
}

void write_counting(const std::filesystem::path& path, const std::vector<TensorSpec>& specs) {
  SafetensorsWriter writer(path, specs);
  for (size_t i = 0; i < specs.size(); ++i) {
    writer.append(specs[i].name, counting_bytes(size_of_spec(specs[i]), static_cast<int>(i)));
  }
  writer.commit();
}

template <typename ErrorType, typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const ErrorType& error) {
    return error.what();
  }
  return "accepted";
}

TEST_CASE("Every dtype and every kind of shape comes back as it was written") {
  const std::vector<std::vector<int64_t>> shapes = {{},      {0},          {3, 0, 5}, {1},
                                                    {7, 13}, {2, 1, 4, 1}, {100'003}};
  for (int d = 0; d <= static_cast<int>(StoredDType::kU64); ++d) {
    const auto dtype = static_cast<StoredDType>(d);
    CAPTURE(std::string(name_of(dtype)));
    CHECK(stored_dtype_from_name(name_of(dtype)) == dtype);
    std::vector<TensorSpec> specs;
    for (const auto& shape : shapes) {
      if (!count_elements(dtype, shape)) continue;  // elements of 4 or 6 bits must fill whole bytes
      specs.push_back({"t" + std::to_string(specs.size()), dtype, shape});
    }
    REQUIRE(specs.size() >= 2);
    const ScratchFolder folder;
    write_counting(folder / "a.safetensors", specs);

    const SafetensorsFile file(folder / "a.safetensors");
    REQUIRE(file.tensors().size() == specs.size());
    CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
    for (size_t i = 0; i < specs.size(); ++i) {
      const StoredTensor* tensor = file.find(specs[i].name);
      REQUIRE(tensor != nullptr);
      CHECK(tensor->dtype == dtype);
      CHECK(tensor->shape == specs[i].shape);
      CHECK(std::ranges::equal(file.bytes(*tensor),
                               counting_bytes(size_of_spec(specs[i]), static_cast<int>(i))));
    }
  }
}

TEST_CASE("LibTorch's types map to stored ones and back") {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64,
                            DType::kInt64, DType::kInt32, DType::kUInt8}) {
    const c10::ScalarType type = scalar_type_of(dtype);
    CHECK(scalar_type_of(stored_dtype(type)) == type);
    CHECK(bits_of(stored_dtype(type)) == 8 * size_of(dtype));
  }
  CHECK(!scalar_type_of(StoredDType::kBool));
  CHECK(!scalar_type_of(StoredDType::kF8E4M3));
  CHECK_THROWS_AS(stored_dtype(c10::ScalarType{11}), InvalidArgument);  // bool
}

TEST_CASE("Tensors are aligned to their element whatever the order they are given in") {
  const ScratchFolder folder;
  write_counting(folder / "a", {{"u8", StoredDType::kU8, {3}},
                                {"b/f32", StoredDType::kF32, {1}},
                                {"f64", StoredDType::kF64, {1}},
                                {"a/f32", StoredDType::kF32, {5}},
                                {"f16", StoredDType::kF16, {1}}});
  const SafetensorsFile file(folder / "a");
  std::vector<std::string> order;
  for (const StoredTensor& tensor : file.tensors()) {
    order.push_back(tensor.name);
    CHECK(tensor.offset_bytes % (bits_of(tensor.dtype) / 8) == 0);
  }
  CHECK(order == std::vector<std::string>{"f64", "a/f32", "b/f32", "f16", "u8"});
}

TEST_CASE("Pieces of any size, tensors taking turns, give the same file") {
  const ScratchFolder folder;
  const std::vector<TensorSpec> specs = {{"a", StoredDType::kF32, {1009}},
                                         {"b", StoredDType::kU8, {11}}};
  write_counting(folder / "whole", specs);
  const auto a = counting_bytes(4036, 0);
  const auto b = counting_bytes(11, 1);
  for (const size_t piece : {size_t{1}, size_t{13}, size_t{4035}}) {
    SafetensorsWriter writer(folder / "pieces", specs);
    for (size_t at = 0; at < a.size(); at += piece) {
      writer.append("a", std::span(a).subspan(at, std::min(piece, a.size() - at)));
      if (at < b.size()) {
        writer.append("b", std::span(b).subspan(at, std::min(piece, b.size() - at)));
      }
      writer.append("b", {});
    }
    writer.commit();
    CHECK(read_whole(folder / "pieces") == read_whole(folder / "whole"));
  }
}

TEST_CASE("A file of no tensors and names of any kind are legal") {
  const ScratchFolder folder;
  SafetensorsWriter(folder / "none", {}, {}).commit();
  CHECK(read_whole(folder / "none") == little_endian(8) + "{}      ");
  CHECK(SafetensorsFile(folder / "none").tensors().empty());

  const std::string odd = "\"quoted\" \\ \n\t\x01 é 𐍈";
  SafetensorsWriter writer(folder / "odd",
                           {{odd, StoredDType::kU8, {1}}, {"", StoredDType::kU8, {}}},
                           {{"k\n", "v\""}, {"", ""}});
  writer.append(odd, bytes_of("x"));
  writer.append("", bytes_of("y"));
  writer.commit();
  const SafetensorsFile file(folder / "odd");
  REQUIRE(file.find(odd) != nullptr);
  CHECK(std::ranges::equal(file.bytes(*file.find(odd)), bytes_of("x")));
  CHECK(file.metadata() == std::map<std::string, std::string>{{"", ""}, {"k\n", "v\""}});
  CHECK(file.find("missing") == nullptr);
}

TEST_CASE("Specifications that no file can hold are refused before a file is made") {
  const ScratchFolder folder;
  const auto said = [&](std::vector<TensorSpec> specs,
                        std::map<std::string, std::string> metadata = {}) {
    return refusal<InvalidArgument>(
        [&] { SafetensorsWriter(folder / "f", std::move(specs), metadata); });
  };
  const std::string where = " (" + (folder / "f").string() + ")";
  CHECK(said({{"a", StoredDType::kF32, {1}}, {"a", StoredDType::kU8, {1}}}) ==
        "tensor 'a' is given twice" + where);
  CHECK(said({{"__metadata__", StoredDType::kF32, {1}}}) ==
        "a tensor cannot be called '__metadata__'" + where);
  CHECK(said({{"a", StoredDType::kF32, {-1}}}) ==
        "tensor 'a': F32 of shape [-1] has no size in bytes" + where);
  CHECK(said({{"a", StoredDType::kF32, {int64_t{1} << 40, int64_t{1} << 40}}}).find("no size") !=
        std::string::npos);
  CHECK(said({{"a", StoredDType::kF4, {3}}}).find("no size in bytes") != std::string::npos);
  std::vector<TensorSpec> huge;
  for (int i = 0; i < 10; ++i) {
    const std::vector<int64_t> shape{(int64_t{1} << 60) - 1};
    huge.push_back({"t" + std::to_string(i), StoredDType::kU8, shape});
  }
  CHECK(said(huge) == "the tensors' sizes overflow" + where);
  CHECK(said({{"\xff", StoredDType::kF32, {1}}}) ==
        "a tensor name or metadata is not UTF-8" + where);
  CHECK(said({}, {{"k", "\xc3"}}) == "a tensor name or metadata is not UTF-8" + where);
  CHECK(folder.names().empty());
}

TEST_CASE("Bytes that do not belong, or are missing at commit, are refused by name") {
  const ScratchFolder folder;
  const std::string where = " (" + (folder / "f").string() + ")";
  SafetensorsWriter writer(folder / "f",
                           {{"a", StoredDType::kU8, {4}}, {"b", StoredDType::kF32, {}}});
  CHECK(refusal<InvalidArgument>([&] { writer.append("c", bytes_of("x")); }) ==
        "tensor 'c' is not part of this file" + where);
  writer.append("a", bytes_of("xyz"));
  CHECK(refusal<InvalidArgument>([&] { writer.append("a", bytes_of("xy")); }) ==
        "tensor 'a' has 4 bytes; 3 are written already, cannot append 2 more" + where);
  CHECK(refusal<StateError>([&] { writer.commit(); }) ==
        "2 tensors are incomplete: 'a' (3 of 4 bytes written), 'b' (0 of 4 bytes written)" + where +
            "; hint: append every byte of each tensor before commit()");
  writer.append("a", bytes_of("!"));
  writer.append("b", bytes_of("1234"));
  writer.commit();
  CHECK(refusal<StateError>([&] { writer.commit(); }) ==
        "commit() was called twice for this file" + where +
            "; hint: call commit() once per file; report this as a bug if your program does not "
            "call it");
}

}  // namespace
}  // namespace fsdp
