// A sequence of linear layers whose units a policy chooses. Tests run one backward on thread ranks
// and one without an engine, and compare them.
#pragma once

#include <functional>

#include "policy/support/plain_models.h"
#include "support/torch_ranks.h"

namespace fsdp::testing {

using Forward = std::function<at::Tensor(torch::nn::Sequential& layers, const at::Tensor& x)>;
using RankForward =
    std::function<at::Tensor(torch::nn::Sequential& layers, const at::Tensor& x, int rank)>;

torch::nn::Sequential rows_of_linears(int count = 3);
torch::nn::LinearImpl& layer(torch::nn::Sequential& layers, size_t i);
at::Tensor input_of(int rank);
// Runs one backward of the mean over `world` ranks, without an engine. Returns the model with its
// gradients.
torch::nn::Sequential plain_after(const RankForward& forward, int world, int count = 3);
void check_gradients(Engine& engine, const torch::nn::Sequential& plain);
// Checks that three steps give the gradients of the plain model. Each linear layer is a unit,
// unless options.units is set.
void check_ranks_as_plain(const RankForward& forward, int world, Options options = {},
                          int count = 3);
void check_as_plain(const Forward& forward, int world = 2, Options options = {}, int count = 3);

// Forwards for these tests. The first calls one layer after the other. Others use custom Functions
// that read the parameters.
at::Tensor in_a_row(torch::nn::Sequential& layers, const at::Tensor& x);
struct TimesWeight : torch::autograd::Function<TimesWeight> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight);
  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients);
};
at::Tensor custom(torch::nn::Sequential& layers, at::Tensor x);

}  // namespace fsdp::testing
