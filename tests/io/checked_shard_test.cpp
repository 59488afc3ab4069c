#include "io/checked_shard.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "io/support/failing_disk.h"
#include "io/support/shard_files.h"
#include "support/safetensors_bytes.h"
#include "support/scratch_folder.h"

namespace fsdp {
namespace {

constexpr const char* kName = "shard-00001-of-00004.safetensors";
constexpr const char* kSumName = "shard-00001-of-00004.sum";

// A shard on disk, and what the manifest has of it.
struct WrittenShard {
  explicit WrittenShard(const SmallShard& content) {
    FailingDisk disk;
    sums = write_shard(disk, path(), content);
  }
  std::filesystem::path path() const { return folder / kName; }
  CheckedShard open() const { return {path(), sums.file_bytes, sum_of(sums)}; }
  std::string opening() const {
    return text_of_error([&] { open(); });
  }

  ScratchFolder folder;
  BlockSums sums;
};

// A shard of three blocks. The second is within tensor "b".
SmallShard three_blocks() {
  SmallShard content{.tensors = {{"a", StoredDType::kF32, {1000}},
                                 {"b", StoredDType::kF32, {5 << 20}},
                                 {"c", StoredDType::kU8, {77}}},
                     .bytes = {}};
  content.bytes = {std::string(4000, 'a'), std::string(20 << 20, 'b'), std::string(77, 'c')};
  return content;
}

void refuses(const std::string& text, const std::string& begin) {
  CAPTURE(text);
  CHECK(text.starts_with(begin));
}

TEST_CASE("A whole shard is checked block by block") {
  const WrittenShard written(three_blocks());
  CheckedShard shard = written.open();
  CHECK(shard.path() == written.path());
  CHECK(shard.find("d") == nullptr);
  for (const StoredTensor& tensor : shard.file().tensors()) {
    shard.check(tensor, 0, tensor.nbytes);
    shard.check(tensor, 1, 1);
    CHECK(static_cast<char>(shard.file().bytes(tensor)[0]) == tensor.name[0]);
  }
  shard.check_all();
  const StoredTensor& c = *shard.find("c");
  CHECK(text_of_error([&] { shard.check(c, 3, 78); }) ==
        "bytes 3–78 of tensor 'c' do not exist: it has 77 bytes (" + written.path().string() + ")");
  CHECK_THROWS_AS(shard.check(c, -1, 3), InvalidArgument);
  CHECK_THROWS_AS(shard.check(c, 3, 2), InvalidArgument);
}

TEST_CASE("A damaged block is named with its tensor and bytes, and only if it is needed") {
  const WrittenShard written(three_blocks());
  flip_byte(written.path(), kBlockBytes + 5);
  CheckedShard shard = written.open();
  const StoredTensor& b = *shard.find("b");
  shard.check(*shard.find("a"), 0, 4000);
  shard.check(*shard.find("c"), 0, 77);
  shard.check(b, 0, 4096);
  shard.check(b, b.nbytes - 4096, b.nbytes);
  const std::string expected =
      "shard-00001-of-00004.safetensors is damaged: 'b', bytes 8388608–16777216 (" +
      written.path().string() + "); their hash is ";
  for (int i = 0; i < 2; ++i)
    refuses(text_of_error([&] { shard.check(b, 0, b.nbytes); }), expected);
  refuses(text_of_error([&] { shard.check_all(); }), expected);
  const auto error = io_error_of([&] { shard.check_all(); });
  CHECK(error->code() == ExitCode::kCorruptData);
  CHECK(error->text().hint == "load an earlier checkpoint");
  CHECK(error->text().cause.ends_with("expected " + written.sums.blocks[1].to_string()));
}

TEST_CASE("A damaged header is named when the shard is opened") {
  const WrittenShard written(three_blocks());
  flip_byte(written.path(), 100);
  refuses(written.opening(), std::string(kName) +
                                 " is damaged: the block of its header, bytes 0–8388608 (" +
                                 written.path().string() + "); their hash is ");
}

TEST_CASE("A header of several blocks is checked whole") {
  SmallShard content{.tensors = {{"a", StoredDType::kU8, {3}}}, .bytes = {"abc"}};
  const ScratchFolder folder;
  FailingDisk disk;
  std::map<std::string, std::string> metadata;
  for (int i = 0; i < 10; ++i) metadata[std::to_string(i)] = std::string(1 << 20, 'm');
  const BlockSums sums = write_shard(disk, folder / kName, content, 1 << 20, metadata);
  REQUIRE(sums.blocks.size() == 2);
  CheckedShard(folder / kName, sums.file_bytes, sum_of(sums)).check_all();
  flip_byte(folder / kName, kBlockBytes + 9);
  refuses(text_of_error([&] { CheckedShard(folder / kName, sums.file_bytes, sum_of(sums)); }),
          std::string(kName) + " is damaged: the block of its header, bytes 8388608–1");
}

TEST_CASE("Each flipped byte of a small shard and of its sums is refused") {
  const WrittenShard written(small_shard(50));
  for (const char* name : {kName, kSumName}) {
    const auto path = written.folder / name;
    for (int64_t at = 0; at < static_cast<int64_t>(std::filesystem::file_size(path)); ++at) {
      CAPTURE(at);
      flip_byte(path, at);
      const auto error = io_error_of([&] { written.open(); });
      REQUIRE(error);
      CHECK(error->code() == ExitCode::kCorruptData);
      CHECK(error->text().where == path.string());
      flip_byte(path, at);
    }
  }
  written.open().check_all();
}

TEST_CASE("Each truncation, and bytes that follow, are refused with both sizes") {
  const WrittenShard written(small_shard());
  for (const char* name : {kName, kSumName}) {
    const std::string bytes = read_whole(written.folder / name);
    std::vector<std::string> contents = {bytes + "x", bytes + bytes};
    for (size_t size = 0; size < bytes.size(); size += name == kName ? 512 : 1) {
      contents.push_back(bytes.substr(0, size));
    }
    for (const std::string& content : contents) {
      written.folder.write(name, content);
      CHECK(written.opening() ==
            std::string(name) + " is damaged: it has " + std::to_string(content.size()) +
                " bytes, expected " + std::to_string(bytes.size()) + " (" +
                (written.folder / name).string() + "); hint: load an earlier checkpoint");
    }
    written.folder.write(name, bytes);
  }
}

TEST_CASE("The files of another shard are refused") {
  const WrittenShard written(small_shard(50)), other(three_blocks());
  SmallShard changed = small_shard(50);
  changed.bytes[0][0] = static_cast<char>(~changed.bytes[0][0]);
  const WrittenShard similar(changed);
  const auto copy = [&](const WrittenShard& from, const char* name) {
    std::filesystem::copy_file(from.folder / name, written.folder / name,
                               std::filesystem::copy_options::overwrite_existing);
  };
  copy(similar, kSumName);
  refuses(written.opening(), std::string(kSumName) + " is damaged: bytes 0–32 (");
  copy(similar, kName);
  refuses(written.opening(), std::string(kSumName) + " is damaged: bytes 0–32 (");
  copy(other, kName);
  refuses(written.opening(), std::string(kName) + " is damaged: it has ");
}

TEST_CASE("Links, folders and missing files are refused") {
  const WrittenShard written(small_shard(50));
  for (const char* name : {kName, kSumName}) {
    const auto path = written.folder / name;
    const std::string bytes = read_whole(path);
    const std::string where = " (" + path.string() + "); hint: ";
    std::filesystem::remove(path);
    CHECK(written.opening() ==
          std::string(name) + " is missing" + where + "load an earlier checkpoint");
    const std::string copy_it = where + "copy the file itself into the folder";
    std::filesystem::create_symlink(written.folder.write("real", bytes), path);
    CHECK(written.opening() == std::string(name) + " is a link" + copy_it);
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    CHECK(written.opening() == std::string(name) + " is a folder" + copy_it);
    std::filesystem::remove(path);
    written.folder.write(name, bytes);
  }
}

TEST_CASE("Sums that fit a file that is no safetensors file do not make it one") {
  const ScratchFolder folder;
  const std::string bytes = little_endian(1 << 30) + "{}";
  folder.write(kName, bytes);
  const BlockSums sums{.file_bytes = std::ssize(bytes), .blocks = {hash_of(bytes_of(bytes))}};
  const auto sum_bytes = sums.to_bytes();
  folder.write(kSumName, {reinterpret_cast<const char*>(sum_bytes.data()), sum_bytes.size()});
  const auto error =
      io_error_of([&] { CheckedShard(folder / kName, sums.file_bytes, sum_of(sums)); });
  REQUIRE(error);
  CHECK(error->code() == ExitCode::kCorruptData);
}

}  // namespace
}  // namespace fsdp
