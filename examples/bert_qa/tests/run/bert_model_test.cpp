// Compares the example's BERT with Python's transformers for the same weights and inputs:
// tests/records/bert_small (post-LN), megatron_small (pre-LN) and bert_nq_small (answer types).
// benchmarks/peers/record_bert.py, record_megatron.py and record_bert_nq.py write the records.
#include "models/bert/bert_model.h"

#include <fsdp/checkpoint.h>
#include <fsdp/safetensors_folder.h>
#include <torch/torch.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>

#include "bert_qa/hf/model_config.h"
#include "bert_qa/hf/weight_names.h"
#include "support/torch_doctest.h"
#include "support/torch_ranks.h"

namespace {

using fsdp::SafetensorsFile;
using fsdp::StoredTensor;

const std::filesystem::path kBert = BERT_QA_RECORDS "/bert_small";
const std::filesystem::path kNq = BERT_QA_RECORDS "/bert_nq_small";
const std::filesystem::path kMegatron = BERT_QA_RECORDS "/megatron_small";

at::Tensor tensor_of(const SafetensorsFile& file, const std::string& name) {
  const StoredTensor* stored = file.find(name);
  REQUIRE_MESSAGE(stored != nullptr, name);
  const bool is_float = stored->dtype == fsdp::StoredDType::kF32;
  REQUIRE((is_float || stored->dtype == fsdp::StoredDType::kI64));
  at::Tensor tensor = torch::empty(stored->shape, is_float ? torch::kFloat : torch::kLong);
  std::memcpy(tensor.mutable_data_ptr(), file.bytes(*stored).data(), stored->nbytes);
  return tensor;
}

struct Recorded {
  SafetensorsFile record;
  fsdp::Unit<bert::QuestionAnswering> model;

  explicit Recorded(const std::filesystem::path& folder)
      : Recorded(folder, bert_qa::read_model_config(folder / "config.json")) {}
  Recorded(const std::filesystem::path& folder, const bert::Config& config)
      : record(folder / "record.safetensors"), model(config) {
    const SafetensorsFile weights(folder / "model.safetensors");
    torch::NoGradGuard no_grad;
    const auto parameters = model->named_parameters();
    REQUIRE(parameters.size() == weights.tensors().size());
    for (const auto& parameter : parameters) {
      parameter.value().copy_(tensor_of(weights, parameter.key()));
    }
  }
  bert::Logits all_logits() {
    return model(tensor_of(record, "inputs.input_ids"), tensor_of(record, "inputs.token_type_ids"),
                 tensor_of(record, "inputs.attention_mask"));
  }
  at::Tensor logits() { return all_logits().span_BS2; }
};

double largest_difference(const at::Tensor& ours, const at::Tensor& theirs) {
  REQUIRE(ours.sizes() == theirs.sizes());
  return (ours - theirs).abs().max().item<double>();
}

}  // namespace

TEST_CASE("logits, loss and every gradient of small BERTs equal Python transformers'") {
  for (const std::filesystem::path& folder : {kBert, kMegatron}) {
    CAPTURE(folder.string());
    Recorded recorded(folder);
    const auto theirs = [&](const std::string& name) { return tensor_of(recorded.record, name); };
    const at::Tensor logits = recorded.logits();
    CHECK(largest_difference(logits.select(2, 0), theirs("logits.start")) < 1e-5);
    CHECK(largest_difference(logits.select(2, 1), theirs("logits.end")) < 1e-5);

    const at::Tensor first = theirs("labels.start_positions");
    const at::Tensor loss =
        bert::span_loss_sum(logits, first, theirs("labels.end_positions")) / first.size(0);
    CHECK(loss.item<double>() == doctest::Approx(theirs("loss").item<double>()).epsilon(1e-6));
    loss.backward();
    for (const auto& parameter : recorded.model->named_parameters()) {
      CAPTURE(parameter.key());
      CHECK(largest_difference(parameter.value().grad(), theirs("grad." + parameter.key())) < 1e-5);
    }
  }
}

TEST_CASE(
    "logits, loss and every gradient of the joint model equal those of transformers' BertModel") {
  Recorded recorded(kNq);
  const auto theirs = [&](const std::string& name) { return tensor_of(recorded.record, name); };
  const bert::Logits logits = recorded.all_logits();
  CHECK(largest_difference(logits.span_BS2.select(2, 0), theirs("logits.start")) < 1e-5);
  CHECK(largest_difference(logits.span_BS2.select(2, 1), theirs("logits.end")) < 1e-5);
  CHECK(largest_difference(logits.types_BA, theirs("logits.types")) < 1e-5);
  const at::Tensor first = theirs("labels.start_positions");
  const at::Tensor loss = bert::loss_sum(logits, {.first_B = first,
                                                  .last_B = theirs("labels.end_positions"),
                                                  .types_B = theirs("labels.answer_types")}) /
                          first.size(0);
  CHECK(std::abs(loss.item<double>() - theirs("loss").item<double>()) < 1e-5);
  loss.backward();
  for (const auto& parameter : recorded.model->named_parameters()) {
    CAPTURE(parameter.key());
    CHECK(largest_difference(parameter.value().grad(), theirs("grad." + parameter.key())) < 1e-5);
  }
}

TEST_CASE("a window with the type -1 and positions at the length counts for nothing") {
  Recorded recorded(kNq);
  const bert::Logits logits = recorded.all_logits();
  const at::Tensor ignored = torch::full({3}, logits.span_BS2.size(1), torch::kLong);
  const at::Tensor loss = bert::loss_sum(
      logits,
      {.first_B = ignored, .last_B = ignored, .types_B = torch::full({3}, -1, torch::kLong)});
  CHECK(loss.item<double>() == 0);
}

TEST_CASE("each rank's gradient shards are its runs of transformers' gradients") {
  const SafetensorsFile record(kBert / "record.safetensors");
  const fsdp::SafetensorsFolder folder(kBert);
  const auto input = [&](const char* name) { return tensor_of(record, name); };
  for (const int world : {1, 2, 3}) {
    CAPTURE(world);
    fsdp::testing::run_torch_ranks(world, [&](fsdp::Mesh mesh) {
      // Every rank runs the whole batch, so the mean over ranks is the recorded gradient.
      fsdp::BuildScope building(mesh, {.unit_options = bert::unit_options});
      fsdp::Unit<bert::QuestionAnswering> model(bert_qa::read_model_config(kBert / "config.json"));
      fsdp::Engine engine(model, building);
      CHECK(
          fsdp::load_weights(engine, folder.files(), bert_qa::load_options(nullptr)).notes.empty());
      const at::Tensor logits = model(input("inputs.input_ids"), input("inputs.token_type_ids"),
                                      input("inputs.attention_mask"))
                                    .span_BS2;
      const at::Tensor first = input("labels.start_positions");
      (bert::span_loss_sum(logits, first, input("labels.end_positions")) / first.size(0))
          .backward();
      for (const fsdp::ShardedParameter& parameter : engine.sharded_parameters()) {
        CAPTURE(parameter.fqn);
        if (parameter.local.numel() == 0) continue;
        const at::Tensor whole = input(("grad." + parameter.fqn).c_str()).flatten();
        const int64_t end = parameter.begin + parameter.local.numel();
        CHECK(largest_difference(parameter.local.grad().clone(),
                                 whole.slice(0, parameter.begin, end)) < 1e-5);
      }
    });
  }
}

TEST_CASE("gelu_new is the tanh approximation") {
  bert::Config config = bert_qa::read_model_config(kBert / "config.json");
  config.hidden_act = "gelu_new";
  Recorded recorded(kBert, config);
  const at::Tensor logits = recorded.logits();
  CHECK(largest_difference(logits.select(2, 0),
                           tensor_of(recorded.record, "gelu_new.logits.start")) < 1e-5);
  CHECK(largest_difference(logits.select(2, 1), tensor_of(recorded.record, "gelu_new.logits.end")) <
        1e-5);
}

TEST_CASE("positions at or past the length count for nothing") {
  Recorded recorded(kBert);
  const at::Tensor first = tensor_of(recorded.record, "ignored.labels.start_positions");
  const at::Tensor last = tensor_of(recorded.record, "ignored.labels.end_positions");
  // One of three windows is ignored, so transformers divides by two.
  const at::Tensor loss = bert::span_loss_sum(recorded.logits(), first, last) / 2;
  CHECK(loss.item<double>() ==
        doctest::Approx(tensor_of(recorded.record, "ignored.loss").item<double>()).epsilon(1e-6));
}

TEST_CASE("dropout acts in training alone") {
  bert::Config config = bert_qa::read_model_config(kBert / "config.json");
  config.hidden_dropout_prob = 0.5;
  config.attention_probs_dropout_prob = 0.5;
  fsdp::Unit<bert::QuestionAnswering> model(config);
  const at::Tensor ids = torch::randint(1, 96, {2, 7});
  const auto logits = [&] {
    return model(ids, torch::zeros_like(ids), torch::ones_like(ids)).span_BS2;
  };
  CHECK_FALSE(at::equal(logits(), logits()));
  model->eval();
  CHECK(at::equal(logits(), logits()));
}
