// Models with tied parameters.
#pragma once

#include "engine/support/twin.h"

namespace fsdp::testing {

// A model whose embedding and head share one weight.
struct TiedImpl : torch::nn::Module {
  TiedImpl() : embedding(11, 6), middle(6, 6) {
    register_module("embedding", embedding);
    register_module("middle", middle);
    register_parameter("head", embedding->weight);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    return torch::nn::functional::linear(middle(embedding(tokens)), embedding->weight);
  }
  torch::nn::Embedding embedding;
  Unit<torch::nn::Linear> middle;
};
TORCH_MODULE(Tied);
// The same tie between two units: the embedding is a unit itself.
struct TiedAcrossImpl : torch::nn::Module {
  TiedAcrossImpl() : embedding(11, 6), middle(6, 6) {
    register_module("embedding", embedding);
    register_module("middle", middle);
    register_parameter("head", embedding->weight);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    return torch::nn::functional::linear(middle(embedding(tokens)), embedding->weight);
  }
  Unit<torch::nn::Embedding> embedding;
  Unit<torch::nn::Linear> middle;
};
TORCH_MODULE(TiedAcross);

template <class Model>
Twin tied_twin() {
  return {
      .make = [] { return Unit<Model>().ptr(); },
      .loss =
          [](torch::nn::Module& model, int step, int rank) {
            const Batch batch = batch_of(step, rank, 11);
            const at::Tensor logits =
                dynamic_cast<UnitImpl<typename Model::ContainedType>&>(model).call(batch.tokens);
            return torch::nn::functional::cross_entropy(logits.flatten(0, 1),
                                                        batch.labels.flatten());
          }};
}

}  // namespace fsdp::testing
