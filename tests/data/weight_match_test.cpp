#include "data/weight_match.h"

#include <doctest/doctest.h>

#include "data/support/model_files.h"
#include "data/support/scratch_folder.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

const std::string kWord = "bert.embeddings.word_embeddings.weight";
const std::string kNorm = "bert.embeddings.LayerNorm.weight";
const std::string kNormBias = "bert.embeddings.LayerNorm.bias";
const std::string kHead = "qa_outputs.weight";
const std::string kHeadBias = "qa_outputs.bias";

const std::vector<ExpectedTensor> kExpected = {
    {kWord, {2}}, {kNorm, {2}}, {kNormBias, {2}}, {kHead, {2}, true}, {kHeadBias, {2}, true}};

// A model folder of F32 tensors of shape [2] with these names.
class Folder {
 public:
  explicit Folder(const std::vector<TensorSpec>& specs) {
    write_zeros(scratch_ / "model.safetensors", specs);
    model_.emplace(scratch_.path());
  }
  explicit Folder(const std::vector<std::string>& names) : Folder(small_tensors(names)) {}

  const ModelFolder& model() const { return *model_; }
  const ScratchFolder& scratch() const { return scratch_; }
  std::vector<std::string> notes(const SafetensorsFile* head = nullptr) const {
    return match_weights(model(), kExpected, head).notes;
  }
  std::string refusal(const SafetensorsFile* head = nullptr) const {
    try {
      match_weights(model(), kExpected, head);
    } catch (const IoError& error) {
      CHECK(error.code() == ExitCode::kCorruptData);
      return error.text().what;
    }
    return "accepted";
  }

 private:
  ScratchFolder scratch_;
  std::optional<ModelFolder> model_;
};

TEST_CASE("Names as today's models have them match without a word") {
  const Folder folder({kWord, kNorm, kNormBias, kHead, kHeadBias});
  const MatchedWeights matched = match_weights(folder.model(), kExpected);
  REQUIRE(matched.sources.size() == kExpected.size());
  for (size_t i = 0; i < kExpected.size(); ++i) {
    REQUIRE(matched.sources[i].has_value());
    CHECK(matched.sources[i]->tensor->name == kExpected[i].name);
  }
  CHECK(matched.notes.empty());
}

TEST_CASE("Names of other times are known") {
  CHECK(current_name("embeddings.LayerNorm.gamma") == kNorm);
  CHECK(current_name("bert.embeddings.LayerNorm.beta") == kNormBias);
  CHECK(current_name("encoder.layer.0.output.dense.bias") ==
        "bert.encoder.layer.0.output.dense.bias");
  CHECK(current_name("pooler.dense.weight") == "bert.pooler.dense.weight");
  CHECK(current_name("cls.predictions.bias") == "cls.predictions.bias");
  CHECK(current_name("qa_outputs.bias") == "qa_outputs.bias");
}

TEST_CASE("A bare encoder with old norms loads, and all that is odd is said once") {
  const Folder folder({"embeddings.word_embeddings.weight", "embeddings.LayerNorm.gamma",
                       "embeddings.LayerNorm.beta", "embeddings.position_ids",
                       "pooler.dense.weight", "cls.predictions.bias"});
  const MatchedWeights matched = match_weights(folder.model(), kExpected);
  CHECK(matched.sources[1]->tensor->name == "embeddings.LayerNorm.gamma");
  CHECK(matched.sources[2]->tensor->name == "embeddings.LayerNorm.beta");
  CHECK(!matched.sources[3]);
  CHECK(!matched.sources[4]);
  CHECK(matched.notes ==
        std::vector<std::string>{
            "2 tensors named gamma or beta read as weight or bias",
            "3 tensors not used: 'embeddings.position_ids', 'pooler.dense.weight', "
            "'cls.predictions.bias'",
            "2 tensors not in the weights, initialised: 'qa_outputs.weight', 'qa_outputs.bias'"});
}

TEST_CASE("A pooler is used where the model expects one") {
  const Folder folder({kWord, "pooler.dense.weight"});
  const std::vector<ExpectedTensor> expected = {{kWord, {2}}, {"bert.pooler.dense.weight", {2}}};
  const MatchedWeights matched = match_weights(folder.model(), expected);
  CHECK(matched.sources[1]->tensor->name == "pooler.dense.weight");
  CHECK(matched.notes.empty());
}

TEST_CASE("A head from a file of its own comes before the model's") {
  const Folder folder({kWord, kNorm, kNormBias, kHead, kHeadBias});
  const auto path = folder.scratch() / "head.safetensors";
  write_zeros(path, small_tensors({kHead, kHeadBias}));
  const SafetensorsFile head(path);
  const MatchedWeights matched = match_weights(folder.model(), kExpected, &head);
  CHECK(matched.sources[0]->file != &head);
  CHECK(matched.sources[3]->file == &head);
  CHECK(matched.notes == std::vector<std::string>{"taken from " + path.string() +
                                                  " instead of the model: 'qa_outputs.bias', "
                                                  "'qa_outputs.weight'"});
  const Folder bare({kWord, kNorm, kNormBias});
  CHECK(bare.notes(&head).empty());
}

TEST_CASE("Missing, unexpected, unfitting and doubled tensors are refused by name") {
  CHECK(Folder({kWord, kNorm}).refusal() ==
        "1 tensor of the model missing from the weights: 'bert.embeddings.LayerNorm.bias'");
  CHECK(Folder({kHead, kHeadBias})
            .refusal()
            .find("3 tensors of the model missing from the weights: "
                  "'bert.embeddings.word_embeddings.weight', ") == 0);
  CHECK(Folder({kWord, kNorm, kNormBias, kHead}).refusal() ==
        "1 tensor of the model missing from the weights: 'qa_outputs.bias'");
  CHECK(
      Folder({kWord, kNorm, kNormBias, "classifier.weight", "bert.encoder.layer.9.x"}).refusal() ==
      "2 tensors in the weights that the model does not have: "
      "'bert.encoder.layer.9.x', 'classifier.weight'");
  CHECK(Folder({kWord, kNorm, kNormBias, "embeddings.LayerNorm.gamma"}).refusal() ==
        "tensors 'bert.embeddings.LayerNorm.weight' and 'embeddings.LayerNorm.gamma' both mean "
        "'bert.embeddings.LayerNorm.weight'");
  auto specs = small_tensors({kWord, kNorm, kNormBias});
  specs[0].shape = {2, 1};
  CHECK(Folder(specs).refusal() ==
        "tensor '" + kWord + "' has shape [2, 1], the model expects [2]");
  specs[0] = {kWord, StoredDType::kI64, {2}};
  CHECK(Folder(specs).refusal() == "tensor '" + kWord + "' is I64, which is no type of weights");
  specs[0] = {kWord, StoredDType::kF8E4M3, {2}};
  CHECK(Folder(specs).refusal().find("is F8_E4M3, which is no type") != std::string::npos);
  for (const auto dtype : {StoredDType::kF16, StoredDType::kBF16, StoredDType::kF64}) {
    specs[0] = {kWord, dtype, {2}};
    CHECK(Folder(specs).refusal() == "accepted");
  }
}

TEST_CASE("A long list of names is cut") {
  std::vector<std::string> names = {kWord, kNorm, kNormBias};
  for (int i = 10; i < 30; ++i) names.push_back("extra." + std::to_string(i));
  const std::string said = Folder(names).refusal();
  CHECK(said.find("20 tensors in the weights") == 0);
  CHECK(said.ends_with("'extra.17' and 12 more"));
}

}  // namespace
}  // namespace fsdp
