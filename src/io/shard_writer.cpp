#include "io/shard_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "fsdp/error.h"
#include "io/block_file.h"
#include "io/new_file.h"
#include "io/safetensors_header.h"
#include "io/safetensors_start.h"

namespace fsdp {
namespace {

// Returns indices into `specs` in decreasing order of element size.
std::vector<size_t> order_of_file(const std::vector<TensorSpec>& specs) {
  std::vector<size_t> order(specs.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [&](size_t i) { return bits_of(specs[i].dtype); });
  return order;
}

using AlignedMemory = std::unique_ptr<std::byte, void (*)(void*)>;

AlignedMemory aligned_memory(int64_t bytes) {
  const auto size = static_cast<size_t>(round_up(bytes, kDirectAlignment));
  void* memory = std::aligned_alloc(kDirectAlignment, size);
  if (memory == nullptr) throw std::bad_alloc();
  return {static_cast<std::byte*>(memory), std::free};
}

}  // namespace

ShardStart shard_start(const std::vector<TensorSpec>& tensors,
                       const std::map<std::string, std::string>& metadata,
                       const std::filesystem::path& path) {
  const int64_t entries = std::ssize(tensors) + std::ssize(metadata);
  if (entries > kMaxEntries) {
    throw InvalidArgument(
        {.what = fmt::format("{} tensors and metadata entries in one file, at most {} are allowed",
                             entries, kMaxEntries),
         .where = path.string()});
  }
  std::vector<size_t> order = order_of_file(tensors);
  std::vector<TensorSpec> ordered;
  ordered.reserve(tensors.size());
  for (const size_t i : order) ordered.push_back(tensors[i]);
  SafetensorsStart start = safetensors_start(std::move(ordered), metadata, kDirectAlignment, path);
  return {std::move(start.bytes), std::move(order), start.file_bytes};
}

bool write_shard_image(Disk& disk, const std::filesystem::path& path,
                       std::span<const std::byte> image, const std::stop_token& stop) {
  BlockFile file(disk, path, std::ssize(image));
  while (!image.empty() && !stop.stop_requested()) {
    const auto block = image.first(std::min(image.size(), static_cast<size_t>(kBlockBytes)));
    file.write(block);
    image = image.subspan(block.size());
  }
  if (!image.empty()) return false;
  file.finish();
  return true;
}

void write_sums(Disk& disk, const std::filesystem::path& shard, std::span<const std::byte> image) {
  BlockSums sums{.file_bytes = std::ssize(image), .blocks = {}};
  while (!image.empty()) {
    const auto block = image.first(std::min(image.size(), static_cast<size_t>(kBlockBytes)));
    sums.blocks.push_back(hash_of(block));
    image = image.subspan(block.size());
  }
  write_sums_file(disk, shard, sums);
}

struct ShardWriter::State {
  // kFailed: a write or a sync failed. The file is never written again, because the system may have
  // dropped pages of it.
  enum class Phase : uint8_t { kOpen, kFailed, kFinished };

  State(Disk& disk, std::filesystem::path path, ShardStart start)
      : order(std::move(start.order)),
        block(aligned_memory(std::min(kBlockBytes, start.file_bytes))),
        file(disk, std::move(path), start.file_bytes) {
    append(std::as_bytes(std::span(start.bytes)));
  }

  void require_open() const {
    if (phase == Phase::kOpen) return;
    throw StateError({.what = phase == Phase::kFailed ? "cannot go on with a file after a failure"
                                                      : "cannot write to a finished file",
                      .where = file.path().string()});
  }

  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const size_t count = std::min(bytes.size(), static_cast<size_t>(kBlockBytes - in_block));
      // memcpy is used, because GCC 12 compiles std::ranges::copy of std::byte to a loop over
      // single bytes.
      std::memcpy(block.get() + in_block, bytes.data(), count);
      in_block += static_cast<int64_t>(count);
      bytes = bytes.subspan(count);
      if (in_block == kBlockBytes) write_block();
    }
  }

  void write_block() {
    file.write({block.get(), static_cast<size_t>(in_block)});
    in_block = 0;
  }

  int64_t missing() const { return file.sums().file_bytes - file.written() - in_block; }

  std::vector<size_t> order;
  AlignedMemory block;
  int64_t in_block = 0;  // bytes in `block`
  BlockFile file;
  Phase phase = Phase::kOpen;
};

ShardWriter::ShardWriter(Disk& disk, std::filesystem::path path, std::vector<TensorSpec> tensors,
                         const std::map<std::string, std::string>& metadata)
    : state_(std::make_unique<State>(disk, path, shard_start(tensors, metadata, path))) {}
ShardWriter::~ShardWriter() = default;

const std::vector<size_t>& ShardWriter::order() const { return state_->order; }

void ShardWriter::append(std::span<const std::byte> bytes) {
  state_->require_open();
  if (std::ssize(bytes) > state_->missing()) {
    throw InvalidArgument(
        {.what = fmt::format("cannot append {} bytes, because the tensors lack only {}",
                             bytes.size(), state_->missing()),
         .where = state_->file.path().string()});
  }
  state_->phase = State::Phase::kFailed;
  state_->append(bytes);
  state_->phase = State::Phase::kOpen;
}

BlockSums ShardWriter::finish() {
  state_->require_open();
  if (state_->missing() != 0) {
    throw StateError({.what = fmt::format("the tensors lack {} bytes", state_->missing()),
                      .where = state_->file.path().string(),
                      .hint = "append every byte of each tensor before finish()"});
  }
  state_->phase = State::Phase::kFailed;
  if (state_->in_block > 0) state_->write_block();
  state_->file.finish();
  state_->phase = State::Phase::kFinished;
  return state_->file.sums();
}

}  // namespace fsdp
