#include "io/checked_shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/plain_file.h"
#include "io/safetensors_header.h"

namespace fsdp {

void refuse_damaged(const std::filesystem::path& path, const std::string& what, std::string cause) {
  throw IoError(ExitCode::kCorruptData,
                {.what = fmt::format("{} is damaged: {}", path.filename().string(), what),
                 .where = path.string(),
                 .cause = std::move(cause),
                 .hint = "load an earlier checkpoint"});
}

namespace {

void require_size(const std::filesystem::path& path, int64_t size, int64_t expected) {
  if (size == expected) return;
  refuse_damaged(path, fmt::format("it has {} bytes, expected {}", size, expected));
}

std::string hash_difference(const Hash128& found, const Hash128& expected) {
  return fmt::format("their hash is {}, expected {}", found.to_string(), expected.to_string());
}

BlockSums read_sums(const std::filesystem::path& path, int64_t file_bytes, const Hash128& sum) {
  const MappedFile file = map_plain_file(path);
  require_size(path, std::ssize(file.bytes()), sums_bytes(file_bytes));
  const Hash128 found = hash_of(file.bytes());
  if (found != sum) {
    refuse_damaged(path, fmt::format("bytes 0–{}", file.bytes().size()),
                   hash_difference(found, sum));
  }
  BlockSums sums = BlockSums::parse(file.bytes(), path);
  if (sums.file_bytes != file_bytes) {
    refuse_damaged(path, fmt::format("it has the hashes of a file of {} bytes, expected {}",
                                     sums.file_bytes, file_bytes));
  }
  return sums;
}

void compare_block(const std::filesystem::path& path, const MappedFile& file, const BlockSums& sums,
                   int64_t block, std::string_view tensor) {
  const int64_t begin = block * kBlockBytes;
  const int64_t size = std::min(kBlockBytes, sums.file_bytes - begin);
  const auto bytes = file.bytes().subspan(static_cast<size_t>(begin), static_cast<size_t>(size));
  const Hash128 found = hash_of(bytes);
  file.forget(bytes);
  const Hash128& expected = sums.blocks[static_cast<size_t>(block)];
  if (found == expected) return;
  refuse_damaged(path,
                 fmt::format("{}, bytes {}–{}",
                             tensor.empty() ? "the block of its header" : quoted_name(tensor),
                             begin, begin + size),
                 hash_difference(found, expected));
}

// Compares the blocks of the header with their hashes, before the header is parsed. Returns the
// number of these blocks.
int64_t check_header(const std::filesystem::path& path, const MappedFile& file,
                     const BlockSums& sums) {
  if (sums.blocks.empty()) refuse_damaged(path, "it is empty");
  compare_block(path, file, sums, 0, {});
  // Here a wrong size of the header is not an error. The parser of the header reports it later.
  uint64_t header_bytes = 0;
  for (size_t i = std::min<size_t>(8, file.bytes().size()); i > 0; --i) {
    header_bytes = header_bytes << 8 | static_cast<uint64_t>(file.bytes()[i - 1]);
  }
  header_bytes = std::min<uint64_t>(header_bytes, kMaxHeaderBytes);
  const int64_t end =
      std::min(sums.file_bytes, kSafetensorsPrefixBytes + static_cast<int64_t>(header_bytes));
  const int64_t count = std::max<int64_t>(1, (end + kBlockBytes - 1) / kBlockBytes);
  for (int64_t block = 1; block < count; ++block) compare_block(path, file, sums, block, {});
  return count;
}

}  // namespace

struct CheckedShard::Unread {
  Unread(std::filesystem::path from, int64_t bytes, const Hash128& sum)
      : path(std::move(from)), mapping(map_plain_file(path)) {
    require_size(path, std::ssize(mapping.bytes()), bytes);
    sums = read_sums(sums_path(path), bytes, sum);
    checked.resize(sums.blocks.size());
    std::fill_n(checked.begin(), check_header(path, mapping, sums), 1);
  }

  std::filesystem::path path;
  MappedFile mapping;
  BlockSums sums;
  std::vector<char> checked;
};

CheckedShard::CheckedShard(std::filesystem::path path, int64_t bytes, const Hash128& sum)
    : CheckedShard(Unread(std::move(path), bytes, sum)) {}

CheckedShard::CheckedShard(Unread unread)
    : mapping_(std::move(unread.mapping)),
      sums_(std::move(unread.sums)),
      checked_(std::move(unread.checked)),
      file_(std::move(unread.path)) {}

void CheckedShard::check_block(int64_t block, std::string_view tensor) {
  char& checked = checked_[static_cast<size_t>(block)];
  if (checked) return;
  compare_block(path(), mapping_, sums_, block, tensor);
  checked = 1;
}

void CheckedShard::check(const StoredTensor& tensor, int64_t begin, int64_t end) {
  if (begin < 0 || end < begin || end > tensor.nbytes) {
    throw InvalidArgument(
        {.what = fmt::format("bytes {}–{} of tensor {} do not exist: it has {} bytes", begin, end,
                             quoted_name(tensor.name), tensor.nbytes),
         .where = path().string()});
  }
  if (begin == end) return;
  const int64_t last = (tensor.offset_bytes + end - 1) / kBlockBytes;
  for (int64_t block = (tensor.offset_bytes + begin) / kBlockBytes; block <= last; ++block) {
    check_block(block, tensor.name);
  }
}

void CheckedShard::check_all() {
  // The tensors are in the order of their bytes, so an error names a block by its first tensor.
  auto tensor = file_.tensors().begin();
  for (int64_t block = 0; block < std::ssize(sums_.blocks); ++block) {
    const auto ends_before = [&] {
      return tensor->offset_bytes + tensor->nbytes <= block * kBlockBytes;
    };
    while (tensor != file_.tensors().end() && ends_before()) ++tensor;
    check_block(block, tensor == file_.tensors().end() ? "" : std::string_view(tensor->name));
  }
}

}  // namespace fsdp
