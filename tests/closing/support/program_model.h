// A program as a model: every part that is a unit is a fsdp::Unit.
#pragma once

#include <fsdp/unit.h>

#include <memory>
#include <vector>

#include "closing/support/program.h"
#include "closing/support/recompute.h"

namespace fsdp::testing {

inline constexpr int64_t kRows = 2, kWidth = 3, kVocabulary = 5;

// What the bodies of one model share.
struct Scene {
  std::shared_ptr<const Program> program;
  std::vector<SegmentForward> units;  // by part: the unit's call
  int step = 0, rank = 0;
  bool plain = true;  // without an engine

  bool is_open(int gate) const { return program->is_open(gate, step, rank); }
};

class BodyImpl : public torch::nn::Module {
 public:
  BodyImpl(std::shared_ptr<Scene> scene, int part);
  Tensors forward(Tensors inputs);

 private:
  Tensors run(const Part& part, Tensors registers);
  Tensors call(const Op& op, const Tensors& inputs);

  std::shared_ptr<Scene> scene_;  // shared by all bodies
  const Part& part_;
  Tensors weights_, biases_;
};
TORCH_MODULE(Body);

struct ProgramModel {
  explicit ProgramModel(std::shared_ptr<const Program> program);
  std::shared_ptr<Scene> scene;
  Unit<Body> root = nullptr;
};

}  // namespace fsdp::testing
