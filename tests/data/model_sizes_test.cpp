#include "data/model_sizes.h"

#include <doctest/doctest.h>

#include "data/support/model_files.h"
#include "data/support/scratch_folder.h"
#include "data/support/source_tree.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

std::string refusal(const ModelConfig& config, const ModelFolder& folder) {
  try {
    check_sizes(config, folder);
  } catch (const IoError& error) {
    CHECK(error.code() == ExitCode::kCorruptData);
    return error.what();
  }
  return "accepted";
}

TEST_CASE("the recorded models have the sizes that their configurations say") {
  for (const char* name : {"bert_small", "megatron_small"}) {
    const ModelFolder folder(record_file(name));
    CHECK(refusal(folder.read_config(), folder) == "accepted");
  }
}

TEST_CASE("a size that the weights do not have is refused with the tensor and both shapes") {
  const ModelFolder folder(record_file("bert_small"));
  const ModelConfig good = folder.read_config();
  const auto changed = [&](int64_t ModelConfig::*size, int64_t value) {
    ModelConfig config = good;
    config.*size = value;
    return refusal(config, folder);
  };
  CHECK(changed(&ModelConfig::vocab_size, 1 << 24) ==
        "tensor 'bert.embeddings.word_embeddings.weight' has shape [96, 48], the configuration "
        "says [16777216, 48] (" +
            (folder.path() / "model.safetensors").string() +
            "); hint: config.json and the weights do not belong together");
  CHECK(changed(&ModelConfig::hidden_size, 1 << 17).find("131072]") != std::string::npos);
  CHECK(changed(&ModelConfig::max_position_embeddings, 1 << 20).find("[1048576, 48]") !=
        std::string::npos);
  CHECK(changed(&ModelConfig::type_vocab_size, 3).find("token_type_embeddings") !=
        std::string::npos);
  CHECK(changed(&ModelConfig::intermediate_size, 1 << 19).find("[524288, 48]") !=
        std::string::npos);
  CHECK(changed(&ModelConfig::num_hidden_layers, 4096)
            .starts_with("tensor 'bert.encoder.layer.4095.intermediate.dense.weight' of shape "));
}

TEST_CASE("weights without the tensors that show the sizes are refused") {
  const ScratchFolder scratch;
  write_zeros(scratch / "model.safetensors", small_tensors({"x"}));
  CHECK(refusal({}, ModelFolder(scratch.path())).find("which the configuration implies") !=
        std::string::npos);
}

}  // namespace
}  // namespace fsdp
