#include "bert_qa/hf/model_sizes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/program_text.h>

#include <map>

#include "bert_qa/hf/weight_names.h"
#include "fsdp/error.h"

namespace bert_qa {
namespace {

using Shape = std::vector<int64_t>;

// Returns tensors whose shapes depend on the sizes in the configuration. The weight of the last
// layer depends on the number of layers and on the intermediate size.
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
                       .hint = "use config.json and weights of one model"});
}

}  // namespace

void check_sizes(const bert::Config& config, const fsdp::StoredWeights& weights) {
  std::map<std::string, Shape> expected = shapes_of(config);
  for (const fsdp::StoredWeights::Tensor& tensor : weights.tensors()) {
    const auto at = expected.find(current_name(tensor.name));
    if (at == expected.end()) continue;
    if (tensor.shape != at->second) {
      refuse(fmt::format("tensor {} has shape {}, the configuration requires {}",
                         fsdp::quoted_name(tensor.name), tensor.shape, at->second),
             tensor.file);
    }
    expected.erase(at);
  }
  if (!expected.empty()) {
    refuse(fmt::format("tensor {} of shape {} is missing, but the configuration requires it",
                       fsdp::quoted_name(expected.begin()->first), expected.begin()->second),
           weights.path());
  }
}

}  // namespace bert_qa
