#include "bert_qa/hf/model_sizes.h"

#include <fmt/format.h>

#include <map>

#include "bert_qa/hf/weight_names.h"
#include "fsdp/error.h"
#include "io/printable_name.h"
#include "io/safetensors_header.h"

namespace bert_qa {
namespace {

using Shape = std::vector<int64_t>;

std::map<std::string, Shape> shapes_of(const bert::Config& config) {
  const int64_t hidden = config.hidden_size;
  const std::string embeddings = "bert.embeddings.";
  return {
      {embeddings + "word_embeddings.weight", {config.vocab_size, hidden}},
      {embeddings + "position_embeddings.weight", {config.max_position_embeddings, hidden}},
      {embeddings + "token_type_embeddings.weight", {config.type_vocab_size, hidden}},
      {fmt::format("bert.encoder.layer.{}.intermediate.dense.weight", config.num_hidden_layers - 1),
       {config.intermediate_size, hidden}}};
}

[[noreturn]] void refuse(std::string what, const std::filesystem::path& where) {
  throw fsdp::IoError(fsdp::ExitCode::kCorruptData,
                      {.what = std::move(what),
                       .where = where.string(),
                       .hint = "config.json and the weights do not belong together"});
}

}  // namespace

void check_sizes(const bert::Config& config, const fsdp::StoredWeights& weights) {
  std::map<std::string, Shape> expected = shapes_of(config);
  for (const fsdp::WeightsFile* file : weights.files()) {
    for (const fsdp::MappedTensor& tensor : file->tensors()) {
      const auto at = expected.find(current_name(tensor.name));
      if (at == expected.end()) continue;
      if (tensor.shape != at->second) {
        refuse(fmt::format("tensor {} has shape {}, the configuration says {}",
                           fsdp::quoted_name(tensor.name), fsdp::format_shape(tensor.shape),
                           fsdp::format_shape(at->second)),
               file->path());
      }
      expected.erase(at);
    }
  }
  if (!expected.empty()) {
    refuse(fmt::format("tensor {} of shape {}, which the configuration implies, is not there",
                       fsdp::quoted_name(expected.begin()->first),
                       fsdp::format_shape(expected.begin()->second)),
           weights.path());
  }
}

}  // namespace bert_qa
