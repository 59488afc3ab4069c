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

SafetensorsStart start_of(const std::vector<TensorSpec>& specs, const std::vector<size_t>& order,
                          const std::map<std::string, std::string>& metadata,
                          const std::filesystem::path& path) {
  const int64_t entries = std::ssize(specs) + std::ssize(metadata);
  if (entries > kMaxEntries) {
    throw InvalidArgument(
        {.what = fmt::format("{} tensors and metadata entries in one file, at most {} are allowed",
                             entries, kMaxEntries),
         .where = path.string()});
  }
  std::vector<TensorSpec> ordered;
  ordered.reserve(specs.size());
  for (const size_t i : order) ordered.push_back(specs[i]);
  return safetensors_start(std::move(ordered), metadata, kDirectAlignment, path);
}

using AlignedMemory = std::unique_ptr<std::byte, void (*)(void*)>;

AlignedMemory aligned_memory(int64_t bytes) {
  const auto size = static_cast<size_t>(round_up(bytes, kDirectAlignment));
  void* memory = std::aligned_alloc(kDirectAlignment, size);
  if (memory == nullptr) throw std::bad_alloc();
  return {static_cast<std::byte*>(memory), std::free};
}

}  // namespace

struct ShardWriter::State {
  // kFailed: a write or a sync failed. The file is never written again, because the system may have
  // dropped pages of it.
  enum class Phase : uint8_t { kOpen, kFailed, kFinished };

  State(Disk& to, std::filesystem::path path, const std::vector<TensorSpec>& specs,
        const std::map<std::string, std::string>& metadata)
      : disk(to), order(order_of_file(specs)) {
    const SafetensorsStart start = start_of(specs, order, metadata, path);
    sums.file_bytes = start.file_bytes;
    block = aligned_memory(std::min(kBlockBytes, start.file_bytes));
    file = std::make_unique<NewFile>(disk, std::move(path), Caching::kDirect);
    file->reserve(start.file_bytes);
    append(std::as_bytes(std::span(start.bytes)));
  }

  void require_open() const {
    if (phase == Phase::kOpen) return;
    throw StateError({.what = phase == Phase::kFailed ? "cannot go on with a file after a failure"
                                                      : "cannot write to a finished file",
                      .where = file->path().string()});
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

  // The hash is computed before the write, so that it covers the bytes that were in memory then.
  void write_block() {
    const std::span<const std::byte> bytes(block.get(), static_cast<size_t>(in_block));
    sums.blocks.push_back(hash_of(bytes));
    // The end of the last block is written separately, because it cannot bypass the page cache.
    const auto aligned = bytes.size() / kDirectAlignment * kDirectAlignment;
    file->write_at(flushed, bytes.first(aligned));
    file->write_at(flushed + static_cast<int64_t>(aligned), bytes.subspan(aligned));
    flushed += in_block;
    in_block = 0;
  }

  int64_t missing() const { return sums.file_bytes - flushed - in_block; }

  Disk& disk;
  std::vector<size_t> order;
  BlockSums sums;
  AlignedMemory block{nullptr, std::free};
  int64_t in_block = 0;  // bytes in `block`
  int64_t flushed = 0;   // bytes of the earlier blocks
  std::unique_ptr<NewFile> file;
  Phase phase = Phase::kOpen;
};

ShardWriter::ShardWriter(Disk& disk, std::filesystem::path path, std::vector<TensorSpec> tensors,
                         const std::map<std::string, std::string>& metadata)
    : state_(std::make_unique<State>(disk, std::move(path), tensors, metadata)) {}
ShardWriter::~ShardWriter() = default;

const std::vector<size_t>& ShardWriter::order() const { return state_->order; }

void ShardWriter::append(std::span<const std::byte> bytes) {
  state_->require_open();
  if (std::ssize(bytes) > state_->missing()) {
    throw InvalidArgument(
        {.what = fmt::format("cannot append {} bytes, because the tensors lack only {}",
                             bytes.size(), state_->missing()),
         .where = state_->file->path().string()});
  }
  state_->phase = State::Phase::kFailed;
  state_->append(bytes);
  state_->phase = State::Phase::kOpen;
}

BlockSums ShardWriter::finish() {
  state_->require_open();
  if (state_->missing() != 0) {
    throw StateError({.what = fmt::format("the tensors lack {} bytes", state_->missing()),
                      .where = state_->file->path().string(),
                      .hint = "append every byte of each tensor before finish()"});
  }
  state_->phase = State::Phase::kFailed;
  if (state_->in_block > 0) state_->write_block();
  state_->file->finish();
  const std::filesystem::path& path = state_->file->path();
  // The hashes are written after the sync. So a file that has hashes is whole.
  write_new_file(state_->disk, sums_path(path), state_->sums.to_bytes());
  state_->phase = State::Phase::kFinished;
  return state_->sums;
}

}  // namespace fsdp
