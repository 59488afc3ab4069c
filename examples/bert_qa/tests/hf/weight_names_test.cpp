#include "bert_qa/hf/weight_names.h"

#include <doctest/doctest.h>

namespace bert_qa {
namespace {

TEST_CASE("Names of other times are known") {
  CHECK(current_name("embeddings.LayerNorm.gamma") == "bert.embeddings.LayerNorm.weight");
  CHECK(current_name("bert.embeddings.LayerNorm.beta") == "bert.embeddings.LayerNorm.bias");
  CHECK(current_name("encoder.layer.0.output.dense.bias") ==
        "bert.encoder.layer.0.output.dense.bias");
  CHECK(current_name("pooler.dense.weight") == "bert.pooler.dense.weight");
  CHECK(current_name("cls.predictions.bias") == "cls.predictions.bias");
  CHECK(current_name("qa_outputs.bias") == "qa_outputs.bias");
  CHECK(current_name("module._orig_mod.bert.pooler.dense.bias") == "bert.pooler.dense.bias");
  CHECK(current_name("model.embeddings.LayerNorm.gamma") == "bert.embeddings.LayerNorm.weight");
}

TEST_CASE("What pretraining leaves over may be unused, and the head alone may be missing") {
  const fsdp::LoadOptions options = load_options(nullptr);
  for (const char* name :
       {"cls.predictions.bias", "bert.pooler.dense.weight", "bert.embeddings.position_ids"}) {
    CHECK(options.may_be_unused(name));
  }
  CHECK(!options.may_be_unused("classifier.weight"));
  CHECK(options.may_be_missing("qa_outputs.weight"));
  CHECK(!options.may_be_missing("bert.encoder.layer.0.output.dense.bias"));
}

TEST_CASE("A head's file gives the head, and the rest keeps its values") {
  const fsdp::LoadOptions options = head_options();
  CHECK(!options.may_be_missing("qa_outputs.weight"));
  CHECK(options.may_be_missing("bert.encoder.layer.0.output.dense.bias"));
  CHECK(options.may_be_unused("anything"));
}

TEST_CASE("Old names of norms are told once, before what the load says itself") {
  CHECK(notes_of({}).empty());
  CHECK(notes_of({.renamed = {"embeddings.position_ids", "embeddings.LayerNorm.gamma",
                              "embeddings.LayerNorm.beta"},
                  .notes = {"ignored 1 tensor of the weights: 'x'"}}) ==
        std::vector<std::string>{
            "2 tensors with the old name gamma or beta: loaded as weight or bias",
            "ignored 1 tensor of the weights: 'x'"});
  CHECK(notes_of({.renamed = {"module.a", "module.b"}}) ==
        std::vector<std::string>{"2 tensors with the prefix 'module.': loaded without it"});
}

}  // namespace
}  // namespace bert_qa
