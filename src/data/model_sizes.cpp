#include "data/model_sizes.h"

#include <fmt/format.h>

#include <map>

#include "data/printable_name.h"
#include "data/safetensors_header.h"
#include "data/weight_match.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using Shape = std::vector<int64_t>;

std::map<std::string, Shape> shapes_of(const ModelConfig& config) {
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
  throw IoError(ExitCode::kCorruptData,
                {.what = std::move(what),
                 .where = where.string(),
                 .cause = {},
                 .hint = "config.json and the weights do not belong together"});
}

}  // namespace

void check_sizes(const ModelConfig& config, const ModelFolder& folder) {
  std::map<std::string, Shape> expected = shapes_of(config);
  for (const TensorSource& source : folder.tensors()) {
    const auto at = expected.find(current_name(source.tensor->name));
    if (at == expected.end()) continue;
    if (source.tensor->shape != at->second) {
      refuse(fmt::format("tensor {} has shape {}, the configuration says {}",
                         quoted_name(source.tensor->name), format_shape(source.tensor->shape),
                         format_shape(at->second)),
             source.file->path());
    }
    expected.erase(at);
  }
  if (!expected.empty()) {
    refuse(
        fmt::format("tensor {} of shape {}, which the configuration implies, is not there",
                    quoted_name(expected.begin()->first), format_shape(expected.begin()->second)),
        folder.path());
  }
}

}  // namespace fsdp
