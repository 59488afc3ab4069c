#include "io/block_sums.h"

#include <doctest/doctest.h>

#include "io/support/shard_files.h"
#include "support/safetensors_bytes.h"

namespace fsdp {
namespace {

TEST_CASE("The hash is XXH3-128 in canonical order") {
  // `xxh128sum` prints the same for an empty file and for "abc".
  CHECK(hash_of({}).to_string() == "99aa06d3014798d86001c324468d497f");
  CHECK(hash_of(bytes_of("abc")).to_string() == "06b05ab6733a618578af5f94892f3950");
}

TEST_CASE("A hash comes back from its text, and other texts give none") {
  const Hash128 hash = hash_of(bytes_of("x"));
  const std::string text = hash.to_string();
  CHECK(hash_from_text(text) == hash);
  CHECK(!hash_from_text(text + "0"));
  CHECK(!hash_from_text(text.substr(1)));
  CHECK(!hash_from_text("g" + text.substr(1)));
  CHECK(!hash_from_text("A" + text.substr(1)));
  CHECK(!hash_from_text(""));
}

TEST_CASE("The sums of a file come back from their bytes") {
  for (const int64_t blocks : {0, 1, 3}) {
    BlockSums sums{.file_bytes = blocks * kBlockBytes, .blocks = {}};
    for (int64_t i = 0; i < blocks; ++i) {
      sums.blocks.push_back(hash_of(bytes_of(std::to_string(i))));
    }
    const std::vector<std::byte> bytes = sums.to_bytes();
    CHECK(std::ssize(bytes) == sums_bytes(sums.file_bytes));
    const BlockSums read = BlockSums::parse(bytes, "f");
    CHECK(read.file_bytes == sums.file_bytes);
    CHECK(read.blocks == sums.blocks);
  }
  CHECK(sums_path("a/b.safetensors") == "a/b.sum");
  CHECK(sums_bytes(1) == 32);
  CHECK(sums_bytes(kBlockBytes + 1) == 48);
}

TEST_CASE("Sums of another form or length are refused") {
  const auto said = [](const std::string& bytes) {
    return text_of_error([&] { BlockSums::parse(bytes_of(bytes), "a/b.sum"); });
  };
  const std::string hash(16, 'h');
  CHECK(said("FSDPSUM1" + little_endian(5) + hash) == "accepted");
  const std::string kBegin = "b.sum is damaged: it does not begin with FSDPSUM1 (a/b.sum)";
  CHECK(said("") == kBegin);
  CHECK(said("FSDPSUM1" + little_endian(5).substr(1)) == kBegin);
  CHECK(said("FSDPSUM2" + little_endian(5) + hash) == kBegin);
  CHECK(said("FSDPSUM1" + little_endian(5)) ==
        "b.sum is damaged: it has 0 bytes of hashes for a file of 5 bytes in blocks of 8388608 "
        "(a/b.sum)");
  for (const uint64_t size : {uint64_t{0}, uint64_t{8388609}, ~uint64_t{0}, uint64_t{1} << 63}) {
    CHECK(said("FSDPSUM1" + little_endian(size) + hash).find(" bytes of hashes for a file of ") !=
          std::string::npos);
  }
  CHECK(said("FSDPSUM1" + little_endian(5) + hash + "x").find("it has 17 bytes of hashes") !=
        std::string::npos);
}

}  // namespace
}  // namespace fsdp
