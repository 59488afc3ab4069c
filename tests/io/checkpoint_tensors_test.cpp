#include "io/checkpoint_tensors.h"

#include <doctest/doctest.h>

#include <string>

#include "fsdp/error.h"
#include "io/support/shard_files.h"
#include "io/support/small_manifest.h"
#include "io/support/whole_checkpoint.h"
#include "support/scratch_folder.h"

namespace fsdp {
namespace {

// Returns a checkpoint with a tensor of 25 elements, one of an element, and an empty one.
WholeCheckpoint three_tensors() {
  WholeCheckpoint checkpoint{.manifest = small_manifest(), .bytes = {}};
  checkpoint.manifest.tensors.clear();
  std::vector<int32_t> values;
  for (int32_t i = 0; i < 25; ++i) values.push_back(i * 1001);
  checkpoint.add("one", StoredDType::kU8, {}, "x");
  checkpoint.add("many", StoredDType::kI32, {5, 5}, elements(values));
  checkpoint.add("none", StoredDType::kI32, {0}, {});
  return checkpoint;
}

std::string read(CheckpointTensors& from, int64_t index, int64_t begin, int64_t numel) {
  const int64_t item = bits_of(from.manifest().tensors[index].dtype) / 8;
  std::string bytes(static_cast<size_t>(numel * item), '?');
  from.read(index, begin, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

TEST_CASE("elements are read across the shards of any number of ranks") {
  const WholeCheckpoint checkpoint = three_tensors();
  for (const int64_t ranks : {1, 2, 3, 7, 30}) {
    CAPTURE(ranks);
    const ScratchFolder root;
    WholeCheckpoint cut = checkpoint;
    cut_evenly(cut.manifest, ranks);
    write_checkpoint(root / "saved", cut);
    CheckpointTensors tensors(root / "saved");
    CHECK(tensors.manifest().world_size == ranks);
    CHECK(read(tensors, 0, 0, 1) == "x");
    CHECK(read(tensors, 2, 0, 0).empty());
    for (int64_t begin = 0; begin <= 25; ++begin) {
      for (int64_t end = begin; end <= 25; ++end) {
        CHECK(read(tensors, 1, begin, end - begin) ==
              checkpoint.bytes[1].substr(begin * 4, (end - begin) * 4));
      }
    }
  }
}

TEST_CASE("a shard is opened for its own elements only, and its damage is reported") {
  const ScratchFolder root;
  WholeCheckpoint checkpoint = three_tensors();
  cut_evenly(checkpoint.manifest, 3);
  write_checkpoint(root / "saved", checkpoint);
  const auto shard = root / "saved" / "shard-00002-of-00003.safetensors";
  flip_byte(shard, static_cast<int64_t>(std::filesystem::file_size(shard)) - 1);
  CheckpointTensors tensors(root / "saved");
  CHECK(read(tensors, 1, 0, 18) == checkpoint.bytes[1].substr(0, 72));
  const auto error = io_error_of([&] { read(tensors, 1, 0, 19); });
  REQUIRE(error);
  CHECK(error->code() == ExitCode::kCorruptData);
  CHECK(std::string(error->what()).starts_with("shard-00002-of-00003.safetensors is damaged: "));
}

TEST_CASE("a shard without the elements that the manifest names is refused") {
  const ScratchFolder root;
  WholeCheckpoint checkpoint = three_tensors();
  cut_evenly(checkpoint.manifest, 2);
  write_checkpoint(root / "saved", checkpoint);
  CheckpointManifest manifest = read_manifest(root / "saved");
  manifest.tensors[1].dtype = StoredDType::kF32;
  std::filesystem::remove(root / "saved" / kManifestName);
  std::filesystem::remove(root / "saved" / kIntervalsName);
  write_manifest(root / "saved", manifest);
  CheckpointTensors tensors(root / "saved");
  CHECK(text_of_error([&] { read(tensors, 1, 20, 1); }) ==
        "the file does not have elements [13, 25) of 'many' (" +
            (root / "saved" / "shard-00001-of-00002.safetensors").string() +
            "); hint: use an earlier checkpoint");
}

}  // namespace
}  // namespace fsdp
