// Defines run_plan, which runs the forwards and the backwards of one step.
#include "closing/support/program_run.h"
#include "closing/support/recompute.h"
#include "support/torch_ranks.h"

namespace fsdp::testing {
namespace {

at::Tensor loss_of_forward(ProgramModel& model, int forward) {
  Scene& scene = *model.scene;
  const uint64_t seed = 1000 * scene.step + 100 * forward + scene.rank + 1;
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const Tensors inputs = {values({kRows, kWidth}, seed),
                          torch::randint(kVocabulary, {kRows}, generator, torch::kLong)};
  const bool whole = scene.program->plan == Plan::kRecomputedRoot;
  const Tensors outputs = model.forward(inputs, whole);
  at::Tensor loss;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor part = (outputs[i] * values({kRows, kWidth}, seed + 7 + i)).sum();
    loss = loss.defined() ? loss + part : part;
  }
  return loss;
}

}  // namespace

std::vector<float> run_plan(ProgramModel& model) {
  const auto backward = [&](const at::Tensor& loss, bool keeps_graph = false) {
    if (model.scene->program->evaluates) model.root->eval();
    loss.backward({}, keeps_graph);
    model.root->train();
  };
  std::vector<at::Tensor> losses = {loss_of_forward(model, 0)};
  switch (model.scene->program->plan) {
    case Plan::kOneForward:
    case Plan::kRecomputedRoot:
      backward(losses[0]);
      break;
    case Plan::kTwoForwardsOneBackward:
      losses.push_back(loss_of_forward(model, 1));
      backward(losses[0] + losses[1]);
      break;
    case Plan::kTwoForwardsTwoBackwards:
      losses.push_back(loss_of_forward(model, 1));
      backward(losses[0]);
      backward(losses[1]);
      break;
    case Plan::kTwoForwardsNewestBackward:
      losses.push_back(loss_of_forward(model, 1));
      backward(losses[1]);
      backward(losses[0]);
      break;
    case Plan::kRetainTwice:
      backward(losses[0], /*keeps_graph=*/true);
      backward(losses[0]);
      break;
  }
  std::vector<float> numbers;
  for (const at::Tensor& loss : losses) numbers.push_back(loss.item<float>());
  return numbers;
}

}  // namespace fsdp::testing
