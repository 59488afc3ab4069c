#include <fmt/format.h>
#include <fsdp/safetensors.h>

#include <algorithm>
#include <optional>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/atomic_file.h"
#include "io/safetensors_header.h"
#include "io/safetensors_start.h"

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
std::vector<TensorSpec> in_order_of_format(std::vector<TensorSpec> specs) {
  std::ranges::sort(specs, [](const TensorSpec& a, const TensorSpec& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  return specs;
}

}  // namespace

// The file is created after all checks, so that a wrong argument leaves nothing on disk.
struct SafetensorsWriter::State {
  State(std::filesystem::path path, std::vector<TensorSpec> specs,
        const std::map<std::string, std::string>& metadata) {
    SafetensorsStart start = safetensors_start(in_order_of_format(std::move(specs)), metadata,
                                               kSafetensorsPrefixBytes, path);
    for (StoredTensor& tensor : start.tensors) {
      std::string name = tensor.name;
      targets.emplace(std::move(name), Target{std::move(tensor)});
    }
    file.emplace(std::move(path));
    file->write_at(0, std::as_bytes(std::span(start.bytes)));
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
