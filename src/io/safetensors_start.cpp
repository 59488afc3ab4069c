#include "io/safetensors_start.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "base/bytes.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/safetensors_header.h"

namespace fsdp {
namespace {

[[noreturn]] void refuse_start(const std::filesystem::path& path, std::string what) {
  throw InvalidArgument({.what = std::move(what), .where = path.string()});
}

// Computes the sizes and offsets. The offsets count from the end of the header.
std::vector<StoredTensor> lay_out(std::vector<TensorSpec> specs,
                                  const std::filesystem::path& path) {
  std::vector<StoredTensor> tensors;
  tensors.reserve(specs.size());  // the names below are views of these strings
  std::set<std::string_view> names;
  int64_t at = 0;
  for (TensorSpec& spec : specs) {
    const auto count = count_elements(spec.dtype, spec.shape);
    if (spec.name == kMetadataKey) refuse_start(path, "a tensor cannot be called '__metadata__'");
    if (!count) {
      refuse_start(
          path, fmt::format("tensor {}: {} of shape {} has no size in bytes",
                            quoted_name(spec.name), name_of(spec.dtype), format_shape(spec.shape)));
    }
    tensors.push_back({{std::move(spec)}, count->numel, count->nbytes, at});
    const std::string& name = tensors.back().name;
    if (!names.insert(name).second) {
      refuse_start(path, fmt::format("tensor {} is given twice", quoted_name(name)));
    }
    if (__builtin_add_overflow(at, count->nbytes, &at)) {
      refuse_start(path, "the tensors' sizes overflow");
    }
  }
  return tensors;
}

nlohmann::ordered_json entry_of(const StoredTensor& tensor) {
  return {{"dtype", name_of(tensor.dtype)},
          {"shape", tensor.shape},
          {"data_offsets", {tensor.offset_bytes, tensor.offset_bytes + tensor.nbytes}}};
}

std::string compact(const nlohmann::ordered_json& value, const std::filesystem::path& path) {
  try {
    return value.dump();
  } catch (const nlohmann::json::type_error&) {
    refuse_start(path, "a tensor name or metadata is not UTF-8");
  }
}

// Pads the header with spaces and puts its size in front.
std::string with_size_and_padding(std::string header, int64_t alignment,
                                  const std::filesystem::path& path) {
  const int64_t begin = round_up(kSafetensorsPrefixBytes + std::ssize(header), alignment);
  const int64_t size = begin - kSafetensorsPrefixBytes;
  header.resize(static_cast<size_t>(size), ' ');
  if (size > kMaxHeaderBytes) {
    refuse_start(path, fmt::format("the header has {} bytes, at most {} are allowed", size,
                                   kMaxHeaderBytes));
  }
  std::string prefix;
  for (int i = 0; i < 8; ++i) prefix += static_cast<char>(size >> (8 * i) & 0xff);
  return prefix + header;
}

}  // namespace

SafetensorsStart safetensors_start(std::vector<TensorSpec> specs,
                                   const std::map<std::string, std::string>& metadata,
                                   int64_t alignment, const std::filesystem::path& path) {
  SafetensorsStart start{.tensors = lay_out(std::move(specs), path)};
  std::string header = "{";
  const auto add = [&](const std::string& name, const nlohmann::ordered_json& value) {
    header += fmt::format("{}{}:{}", header.size() > 1 ? "," : "", compact(name, path),
                          compact(value, path));
  };
  if (!metadata.empty()) add(std::string(kMetadataKey), metadata);
  for (const StoredTensor& tensor : start.tensors) add(tensor.name, entry_of(tensor));
  start.bytes = with_size_and_padding(header + "}", alignment, path);
  // In the header's text, offsets count from the end of the header. Here they count from the start
  // of the file.
  start.file_bytes = std::ssize(start.bytes);
  for (StoredTensor& tensor : start.tensors) {
    tensor.offset_bytes += std::ssize(start.bytes);
    if (__builtin_add_overflow(start.file_bytes, tensor.nbytes, &start.file_bytes)) {
      refuse_start(path, "the tensors' sizes overflow");
    }
  }
  return start;
}

}  // namespace fsdp
