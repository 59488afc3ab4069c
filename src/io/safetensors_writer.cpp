#include <fmt/format.h>
#include <fsdp/safetensors.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/atomic_file.h"
#include "io/safetensors_header.h"

namespace fsdp {
namespace {

struct Target {
  StoredTensor tensor;
  int64_t written_bytes = 0;
};

[[noreturn]] void refuse(const std::filesystem::path& path, std::string what) {
  throw InvalidArgument({.what = std::move(what), .where = path.string()});
}

// Orders tensors as the format prescribes: largest element types first, then by name. So every
// tensor is aligned to its element size, and all programs write the same file for the same tensors.
std::map<std::string, Target, std::less<>> lay_out(std::vector<TensorSpec> specs,
                                                   const std::filesystem::path& path,
                                                   std::vector<std::string>& order) {
  std::ranges::sort(specs, [](const TensorSpec& a, const TensorSpec& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  std::map<std::string, Target, std::less<>> targets;
  int64_t at = 0;
  for (TensorSpec& spec : specs) {
    const std::string name = spec.name;
    const auto count = count_elements(spec.dtype, spec.shape);
    if (name == kMetadataKey) refuse(path, "a tensor cannot be called '__metadata__'");
    if (!count) {
      refuse(path, fmt::format("tensor {}: {} of shape {} has no size in bytes", quoted_name(name),
                               name_of(spec.dtype), format_shape(spec.shape)));
    }
    const StoredTensor tensor{{std::move(spec)}, count->numel, count->nbytes, at};
    if (!targets.emplace(name, Target{tensor}).second) {
      refuse(path, fmt::format("tensor {} is given twice", quoted_name(name)));
    }
    order.push_back(name);
    if (__builtin_add_overflow(at, count->nbytes, &at)) refuse(path, "the tensors' sizes overflow");
  }
  return targets;
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
    refuse(path, "a tensor name or metadata is not UTF-8");
  }
}

// Pads the header so that the tensors begin at a multiple of 8 bytes.
std::string with_size_and_padding(std::string header, const std::filesystem::path& path) {
  header.resize(static_cast<size_t>(round_up(std::ssize(header), kSafetensorsPrefixBytes)), ' ');
  const int64_t size = std::ssize(header);
  if (size > kMaxHeaderBytes) {
    refuse(path,
           fmt::format("the header has {} bytes, at most {} are allowed", size, kMaxHeaderBytes));
  }
  std::string prefix;
  for (int i = 0; i < 8; ++i) prefix += static_cast<char>(size >> (8 * i) & 0xff);
  return prefix + header;
}

}  // namespace

// The file is created after all checks, so that a wrong argument leaves nothing on disk.
struct SafetensorsWriter::State {
  State(std::filesystem::path path, std::vector<TensorSpec> specs,
        const std::map<std::string, std::string>& metadata) {
    std::vector<std::string> order;
    targets = lay_out(std::move(specs), path, order);
    std::string header = "{";
    const auto add = [&](const std::string& name, const nlohmann::ordered_json& value) {
      header += fmt::format("{}{}:{}", header.size() > 1 ? "," : "", compact(name, path),
                            compact(value, path));
    };
    if (!metadata.empty()) add(std::string(kMetadataKey), metadata);
    for (const std::string& name : order) add(name, entry_of(targets.find(name)->second.tensor));
    header = with_size_and_padding(header + "}", path);
    // In the header's text, offsets count from the end of the header. Here they count from the
    // start of the file.
    for (auto& [name, target] : targets) target.tensor.offset_bytes += std::ssize(header);
    file.emplace(std::move(path));
    file->write_at(0, std::as_bytes(std::span(header)));
  }

  std::map<std::string, Target, std::less<>> targets;
  std::optional<AtomicFile> file;
  bool finished = false;
};

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : state_(std::make_unique<State>(std::move(path), std::move(tensors), metadata)) {}
SafetensorsWriter::~SafetensorsWriter() = default;
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  const auto at = state_->targets.find(name);
  const std::filesystem::path& path = state_->file->path();
  if (at == state_->targets.end()) {
    refuse(path, fmt::format("tensor {} is not part of this file", quoted_name(name)));
  }
  auto& [tensor, written] = at->second;
  const int64_t size = std::ssize(bytes);
  // The size is compared with the remaining bytes, because `written + size` could overflow.
  if (size > tensor.nbytes - written) {
    refuse(path,
           fmt::format("tensor {} has {} bytes; {} are written already, cannot append {} more",
                       quoted_name(name), tensor.nbytes, written, size));
  }
  state_->file->write_at(tensor.offset_bytes + written, bytes);
  written += size;
}

void SafetensorsWriter::finish() {
  constexpr int64_t kMaxNamed = 5;
  // Bytes that were not written would read as zeros, and no reader could detect that.
  std::string missing;
  int64_t count = 0;
  for (const auto& [name, target] : state_->targets) {
    const auto& [tensor, written] = target;
    if (written == tensor.nbytes) continue;
    if (++count > kMaxNamed) continue;
    missing += fmt::format("{}{} ({} of {} bytes written)", missing.empty() ? "" : ", ",
                           quoted_name(name), written, tensor.nbytes);
  }
  if (count > 0) {
    throw StateError({.what = fmt::format("{} tensors are incomplete: {}{}", count, missing,
                                          count > kMaxNamed ? ", …" : ""),
                      .where = state_->file->path().string(),
                      .hint = "append every byte of each tensor before commit()"});
  }
  state_->file->finish();
  state_->finished = true;
}

void SafetensorsWriter::commit() {
  if (!state_->finished) finish();
  state_->file->commit();
}

}  // namespace fsdp
