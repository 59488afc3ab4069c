#include "io/block_file.h"

#include <utility>

namespace fsdp {

BlockFile::BlockFile(Disk& disk, std::filesystem::path path, int64_t bytes)
    : disk_(disk), file_(disk, std::move(path), Caching::kDirect) {
  sums_.file_bytes = bytes;
  file_.reserve(bytes);
}

// The hash is computed before the write, so that it covers the bytes that were in memory then.
void BlockFile::write(std::span<const std::byte> block) {
  sums_.blocks.push_back(hash_of(block));
  // The end of the last block is written separately, because it cannot bypass the page cache.
  const auto aligned = block.size() / kDirectAlignment * kDirectAlignment;
  file_.write_at(written_, block.first(aligned));
  file_.write_at(written_ + static_cast<int64_t>(aligned), block.subspan(aligned));
  written_ += std::ssize(block);
}

void BlockFile::finish() {
  file_.finish();
  write_sums_file(disk_, path(), sums_);
}

// The file gets its name when it is on disk, because other processes take this name as the sign
// that the described file is whole.
void write_sums_file(Disk& disk, const std::filesystem::path& file, const BlockSums& sums) {
  const std::filesystem::path name = sums_path(file);
  const std::filesystem::path part = name.string() + ".part";
  write_new_file(disk, part, sums.to_bytes());
  give_name(disk, part, name);
}

}  // namespace fsdp
