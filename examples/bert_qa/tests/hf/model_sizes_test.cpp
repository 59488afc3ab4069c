#include "bert_qa/hf/model_sizes.h"

#include <doctest/doctest.h>

#include "bert_qa/hf/model_config.h"
#include "bert_qa/tests/support/records.h"
#include "fsdp/error.h"
#include "support/model_files.h"
#include "support/pickle_bytes.h"
#include "support/scratch_folder.h"
#include "support/zip_bytes.h"

namespace bert_qa {
namespace {

std::string sizes_refusal(const bert::Config& config, const fsdp::StoredWeights& folder) {
  try {
    check_sizes(config, folder);
  } catch (const fsdp::IoError& error) {
    CHECK(error.code() == fsdp::ExitCode::kCorruptData);
    return error.what();
  }
  return "accepted";
}

TEST_CASE("the recorded models have the sizes that their configurations say") {
  for (const char* name : {"bert_small", "megatron_small"}) {
    const fsdp::StoredWeights folder(record_file(name));
    CHECK(sizes_refusal(read_model_config(folder.path() / "config.json"), folder) == "accepted");
  }
}

TEST_CASE("a size that the weights do not have is refused with the tensor and both shapes") {
  const fsdp::StoredWeights folder(record_file("bert_small"));
  const bert::Config good = read_model_config(folder.path() / "config.json");
  const auto changed = [&](int64_t bert::Config::*size, int64_t value) {
    bert::Config config = good;
    config.*size = value;
    return sizes_refusal(config, folder);
  };
  CHECK(changed(&bert::Config::vocab_size, 1 << 24) ==
        "tensor 'bert.embeddings.word_embeddings.weight' has shape [96, 48], the configuration "
        "requires [16777216, 48] (" +
            (folder.path() / "model.safetensors").string() +
            "); hint: use config.json and weights of one model");
  CHECK(changed(&bert::Config::hidden_size, 1 << 17).find("131072]") != std::string::npos);
  CHECK(changed(&bert::Config::max_position_embeddings, 1 << 20).find("[1048576, 48]") !=
        std::string::npos);
  CHECK(changed(&bert::Config::type_vocab_size, 3).find("token_type_embeddings") !=
        std::string::npos);
  CHECK(changed(&bert::Config::intermediate_size, 1 << 19).find("[524288, 48]") !=
        std::string::npos);
  CHECK(changed(&bert::Config::num_hidden_layers, 4096)
            .starts_with("tensor 'bert.encoder.layer.4095.intermediate.dense.weight' of shape "));
}

TEST_CASE("the sizes of a pytorch_model.bin are compared, too") {
  const fsdp::ScratchFolder scratch;
  const bert::Config config =
      read_model_config(std::filesystem::path(record_file("bert_small")) / "config.json");
  const auto said = [&](int vocabulary) {
    const auto size = [](int64_t value) { return static_cast<int>(value); };
    const std::pair<std::string, std::vector<int>> tensors[] = {
        {"embeddings.word_embeddings.weight", {vocabulary, size(config.hidden_size)}},
        {"embeddings.position_embeddings.weight",
         {size(config.max_position_embeddings), size(config.hidden_size)}},
        {"embeddings.token_type_embeddings.weight",
         {size(config.type_vocab_size), size(config.hidden_size)}},
        {"encoder.layer." + std::to_string(config.num_hidden_layers - 1) +
             ".intermediate.dense.weight",
         {size(config.intermediate_size), size(config.hidden_size)}}};
    std::string pickle = "\x80\x02}";
    for (const auto& [name, shape] : tensors) {
      pickle += fsdp::pickled_text("module.bert." + name) +
                fsdp::pickled_tensor({.numel = 1, .shape = shape, .strides = {0, 0}}) + "s";
    }
    scratch.write("pytorch_model.bin", fsdp::zip_of({{"a/data.pkl", pickle + "."},
                                                     {"a/data/0", std::string(4, '\0')},
                                                     {"a/version", "3"}}));
    return sizes_refusal(config, fsdp::StoredWeights(scratch.path()));
  };
  CHECK(said(static_cast<int>(config.vocab_size)) == "accepted");
  CHECK(
      said(7).starts_with("tensor 'module.bert.embeddings.word_embeddings.weight' has shape [7, "));
}

TEST_CASE("weights without the tensors that show the sizes are refused") {
  const fsdp::ScratchFolder scratch;
  fsdp::write_zeros(scratch / "model.safetensors", fsdp::small_tensors({"x"}));
  CHECK(sizes_refusal({}, fsdp::StoredWeights(scratch.path()))
            .find("but the configuration requires it") != std::string::npos);
}

}  // namespace
}  // namespace bert_qa
