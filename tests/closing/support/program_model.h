// ProgramModel runs a program as a model. Each part that is a unit becomes an fsdp::Unit, or a
// module that a policy chooses.
#pragma once

#include <fsdp/unit.h>

#include <memory>
#include <vector>

#include "closing/support/program.h"
#include "closing/support/recompute.h"

namespace fsdp::testing {

inline constexpr int64_t kRows = 2, kWidth = 3, kVocabulary = 5;

// The state that the bodies of one model share.
struct Scene {
  std::shared_ptr<const Program> program;
  std::vector<SegmentForward> units;  // the call of each part's unit, by part
  torch::nn::Module* root = nullptr;
  int step = 0, rank = 0;
  bool plain = true;  // without an engine
  Boundaries boundaries = Boundaries::kUnits;
  std::function<Tensors(const SegmentForward&, Tensors)> in_forward;  // Engine::forward, if set

  bool is_open(int gate) const { return program->is_open(gate, step, rank); }
  // Runs a segment in fsdp::recompute. The plain model uses fsdp::recompute too.
  Tensors again(const SegmentForward& forward, const Tensors& inputs) const;
};

class BodyImpl : public torch::nn::Module {
 public:
  BodyImpl(std::shared_ptr<Scene> scene, int part);
  Tensors forward(Tensors inputs);

 private:
  Tensors run(const Part& part, Tensors registers);
  Tensors run_body(Tensors inputs);
  Tensors call(const Op& op, Tensors inputs);

  // Used if a policy chooses the units. Returns the tensors; floating ones are multiplied by the
  // body's own parameter.
  Tensors touched(Tensors tensors) const;
  at::Tensor factor_of_state();

  std::shared_ptr<Scene> scene_;  // shared by all bodies
  const Part& part_;
  Tensors weights_, biases_;
  at::Tensor gain_;   // parameter for touches, by policy
  at::Tensor dummy_;  // empty parameter of a unit without weights
  at::Tensor scale_;  // a buffer
};
TORCH_MODULE(Body);

// Return and set the values of a model's buffers.
Tensors buffers_of(const torch::nn::Module& model);
void set_buffers(const torch::nn::Module& model, const Tensors& values);

struct ProgramModel {
  explicit ProgramModel(std::shared_ptr<const Program> program,
                        Boundaries boundaries = Boundaries::kUnits);
  // Runs the model. If `recomputed` is true, the whole model runs in one checkpoint.
  Tensors forward(Tensors inputs, bool recomputed);
  std::shared_ptr<Scene> scene;
  std::shared_ptr<torch::nn::Module> root;
};

}  // namespace fsdp::testing
