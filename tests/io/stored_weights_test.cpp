#include "fsdp/stored_weights.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <vector>

#include "fsdp/safetensors_folder_writer.h"
#include "support/scratch_folder.h"

using namespace fsdp;

TEST_CASE("stored weights name each tensor with its shape and its file") {
  const ScratchFolder scratch;
  const std::vector<TensorSpec> specs{{.name = "a", .shape = {2, 3}}, {.name = "b", .shape = {5}}};
  SafetensorsFolderWriter writer(scratch.path(), specs, {.max_shard_bytes = 24});
  const std::vector<std::byte> zeros(24);
  writer.append("a", zeros);
  writer.append("b", std::span(zeros).first(20));
  writer.commit();

  const StoredWeights weights(scratch.path());
  CHECK(weights.path() == scratch.path());
  CHECK(weights.notes().empty());
  const std::vector<StoredWeights::Tensor> tensors = weights.tensors();
  REQUIRE(tensors.size() == 2);
  CHECK(tensors[0].name == "a");
  CHECK(tensors[0].shape == std::vector<int64_t>{2, 3});
  CHECK(tensors[0].file == scratch.path() / "model-00001-of-00002.safetensors");
  CHECK(tensors[1].name == "b");
  CHECK(tensors[1].shape == std::vector<int64_t>{5});
  CHECK(tensors[1].file == scratch.path() / "model-00002-of-00002.safetensors");
}
