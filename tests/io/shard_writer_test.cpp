#include "io/shard_writer.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "io/support/failing_disk.h"
#include "io/support/shard_files.h"
#include "support/safetensors_bytes.h"
#include "support/scratch_folder.h"

namespace fsdp {
namespace {

constexpr const char* kShard = "shard-00000-of-00001.safetensors";
constexpr const char* kSum = "shard-00000-of-00001.sum";

void check_content(const std::filesystem::path& path, const SmallShard& content) {
  const SafetensorsFile file(path);
  REQUIRE(file.tensors().size() == content.tensors.size());
  for (size_t i = 0; i < content.tensors.size(); ++i) {
    const StoredTensor* tensor = file.find(content.tensors[i].name);
    REQUIRE(tensor != nullptr);
    CHECK(tensor->shape == content.tensors[i].shape);
    CHECK(tensor->dtype == content.tensors[i].dtype);
    CHECK(std::ranges::equal(file.bytes(*tensor), bytes_of(content.bytes[i])));
  }
}

TEST_CASE("A shard is a safetensors file whose tensors begin at a multiple of 4,096 bytes") {
  const ScratchFolder folder;
  FailingDisk disk;
  for (const int64_t last_bytes : {0, 1, 3001, 4096, 100'003}) {
    CAPTURE(last_bytes);
    const SmallShard content = small_shard(last_bytes);
    const auto path = folder / (std::to_string(last_bytes) + ".safetensors");
    const BlockSums sums = write_shard(disk, path, content, 1000, {{"rank", "0"}});
    check_content(path, content);
    const SafetensorsFile file(path);
    CHECK(file.metadata() == std::map<std::string, std::string>{{"rank", "0"}});
    CHECK(file.tensors().front().offset_bytes % 4096 == 0);
    for (const StoredTensor& tensor : file.tensors()) {
      CHECK(tensor.offset_bytes % (bits_of(tensor.dtype) / 8) == 0);
    }
    CHECK(sums.file_bytes == std::ssize(read_whole(path)));
    CHECK(sums.blocks == std::vector{hash_of(bytes_of(read_whole(path)))});
  }
}

TEST_CASE("Tensors of one element size keep their order") {
  const ScratchFolder folder;
  FailingDisk disk;
  const ShardWriter writer(disk, folder / kShard,
                           {{"z", StoredDType::kU8, {1}},
                            {"y", StoredDType::kF32, {1}},
                            {"x", StoredDType::kI64, {1}},
                            {"b", StoredDType::kI32, {1}},
                            {"a", StoredDType::kF32, {1}}});
  CHECK(writer.order() == std::vector<size_t>{2, 1, 3, 4, 0});
}

TEST_CASE("Blocks of 8 MiB are hashed one by one, whatever the pieces are") {
  const ScratchFolder folder;
  FailingDisk disk;
  // The data of the second shard ends with a block.
  for (const int64_t last_bytes : {2 * kBlockBytes + 12'345, 2 * kBlockBytes - 8192 + 2954}) {
    SmallShard content = small_shard(last_bytes);
    std::string whole;
    for (const size_t piece : {size_t{777'777}, size_t{1} << 30}) {
      const auto path = folder / std::to_string(piece);
      const BlockSums sums = write_shard(disk, path, content, piece);
      const std::string written = read_whole(path);
      CHECK((whole.empty() || written == whole));
      whole = written;
      REQUIRE(std::ssize(sums.blocks) == (std::ssize(whole) + kBlockBytes - 1) / kBlockBytes);
      for (size_t i = 0; i < sums.blocks.size(); ++i) {
        CHECK(sums.blocks[i] == hash_of(bytes_of(std::string_view(whole).substr(
                                    i * kBlockBytes, static_cast<size_t>(kBlockBytes)))));
      }
      std::filesystem::remove(path);
      std::filesystem::remove(sums_path(path));
    }
  }
}

TEST_CASE("The .sum file has the hashes that finish returns") {
  const ScratchFolder folder;
  const BlockSums sums = write_shard(Disk::system(), folder / kShard, small_shard());
  CHECK(folder.names() == std::vector<std::string>{kShard, kSum});
  const std::string bytes = read_whole(folder / kSum);
  CHECK(std::ranges::equal(bytes_of(bytes), sums.to_bytes()));
  CHECK(BlockSums::parse(bytes_of(bytes), folder / kSum).blocks == sums.blocks);
}

TEST_CASE("Arguments that make no file are refused before a file is made") {
  const ScratchFolder folder;
  FailingDisk disk;
  const auto said = [&](std::vector<TensorSpec> specs) {
    return text_of_error([&] { ShardWriter(disk, folder / "f", std::move(specs)); });
  };
  const std::string where = " (" + (folder / "f").string() + ")";
  CHECK(said({{"a", StoredDType::kF32, {1}}, {"a", StoredDType::kU8, {1}}}) ==
        "tensor 'a' is given twice" + where);
  CHECK(said({{"a", StoredDType::kF32, {-1}}}) ==
        "tensor 'a': F32 of shape [-1] has no size in bytes" + where);
  std::vector<TensorSpec> many;
  for (int i = 0; i < 65'537; ++i) many.push_back({std::to_string(i), StoredDType::kU8, {1}});
  CHECK(said(std::move(many)) ==
        "65537 tensors and metadata entries in one file, at most 65536 are allowed" + where);
  CHECK(folder.names().empty());
  CHECK(disk.calls() == 0);
}

TEST_CASE("A file that exists is not replaced") {
  const ScratchFolder folder;
  folder.write(kShard, "old");
  const auto error =
      io_error_of([&] { write_shard(Disk::system(), folder / kShard, small_shard()); });
  REQUIRE(error);
  CHECK(error->code() == ExitCode::kCannotCreate);
  CHECK(std::string(error->what()) ==
        "cannot create the file (" + (folder / kShard).string() + "); File exists");
  CHECK(read_whole(folder / kShard) == "old");
}

TEST_CASE("Bytes that are missing or too many are refused") {
  const ScratchFolder folder;
  FailingDisk disk;
  const std::string where = " (" + (folder / "f").string() + ")";
  ShardWriter writer(disk, folder / "f", {{"a", StoredDType::kF32, {2}}});
  writer.append(bytes_of("123"));
  CHECK(text_of_error([&] { writer.append(bytes_of("123456")); }) ==
        "cannot append 6 bytes, because the tensors lack only 5" + where);
  CHECK(text_of_error([&] { writer.finish(); }) ==
        "the tensors lack 5 bytes" + where +
            "; hint: append every byte of each tensor before finish()");
  writer.append(bytes_of("45678"));
  writer.finish();
  CHECK(text_of_error([&] { writer.finish(); }) == "cannot write to a finished file" + where);
}

// Writes with the failing disk. Returns true if it wrote the right files. Any other end is an
// IoError that names the file.
bool write_with(FailingDisk& disk, const ScratchFolder& folder, const SmallShard& content) {
  const int64_t descriptors = count_descriptors();
  const auto error = io_error_of([&] { write_shard(disk, folder / kShard, content); });
  CHECK(count_descriptors() == descriptors);
  if (error) {
    CHECK(error->text().where.starts_with((folder / "shard-00000-of-00001").string()));
    CHECK((error->code() == ExitCode::kIoError));
    CHECK(!error->text().cause.empty());
    return false;
  }
  check_content(folder / kShard, content);
  const std::string sums = read_whole(folder / kSum);
  CHECK(BlockSums::parse(bytes_of(sums), "").blocks ==
        std::vector{hash_of(bytes_of(read_whole(folder / kShard)))});
  return true;
}

TEST_CASE("Each call may fail: the result is an error or the right file, and no open descriptor") {
  const SmallShard content = small_shard();
  FailingDisk counting;
  REQUIRE(write_with(counting, ScratchFolder(), content));
  REQUIRE(counting.calls() >= 9);
  for (int64_t at = 0; at < counting.calls(); ++at) {
    CAPTURE(at);
    for (const int error : {ENOSPC, EIO, EDQUOT}) {
      FailingDisk disk(at, error);
      CHECK(!write_with(disk, ScratchFolder(), content));
    }
    FailingDisk interrupted(at, EINTR);
    CHECK(write_with(interrupted, ScratchFolder(), content));
    for (const size_t bytes : {1, 512, 4095, 4096}) {
      FailingDisk disk(at, FailingDisk::kShortWrite, bytes);
      CHECK(write_with(disk, ScratchFolder(), content));
    }
  }
}

TEST_CASE("A file system that refuses direct writes gets buffered ones") {
  const SmallShard content = small_shard();
  bool repeated = false;
  for (int64_t at = 0; at < 9; ++at) {
    FailingDisk disk(at, EINVAL);
    const ScratchFolder folder;
    repeated |= !io_error_of([&] { write_shard(disk, folder / kShard, content); });
  }
  // Only a file system without direct writes reports EINVAL as an error at once.
  const ScratchFolder folder;
  const int fd = ::open(folder.write("probe", "").c_str(), O_WRONLY);
  const bool has_direct = ::fcntl(fd, F_SETFL, O_DIRECT) == 0;
  ::close(fd);
  CHECK(repeated == has_direct);
}

TEST_CASE("A full disk is reported before the first byte, with the file and its size") {
  const ScratchFolder folder;
  FailingDisk disk(1, ENOSPC);
  const auto error = io_error_of([&] { write_shard(disk, folder / kShard, small_shard(1)); });
  REQUIRE(error);
  CHECK(std::string(error->what()) ==
        "cannot reserve 5159 bytes for the file (" + (folder / kShard).string() +
            "); No space left on device; hint: free some space; no existing file was changed");
}

TEST_CASE("A write that fails names the byte, and the file is never written again") {
  const ScratchFolder folder;
  FailingDisk disk(2, EIO);
  const std::vector<TensorSpec> tensors = {{"a", StoredDType::kU8, {2 * kBlockBytes}}};
  ShardWriter writer(disk, folder / kShard, tensors);
  const std::string bytes(static_cast<size_t>(kBlockBytes), 'x');
  CHECK(text_of_error([&] { writer.append(bytes_of(bytes)); }) ==
        "cannot write the file (" + (folder / kShard).string() + ", byte 0); Input/output error");
  CHECK(text_of_error([&] { writer.append(bytes_of("x")); }) ==
        "cannot go on with a file after a failure (" + (folder / kShard).string() + ")");
  CHECK(text_of_error([&] { writer.finish(); }) ==
        "cannot go on with a file after a failure (" + (folder / kShard).string() + ")");
}

}  // namespace
}  // namespace fsdp
