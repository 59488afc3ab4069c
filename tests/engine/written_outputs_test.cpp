// Tests outputs that are not forward's return value.
#include "engine/support/twin.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace nn = torch::nn;

namespace {

// A module that returns nothing. It writes its two results through references.
struct WritesOutputsImpl : nn::Module {
  explicit WritesOutputsImpl(int64_t width)
      : first(register_module("first", nn::Linear(width, width))),
        second(register_module("second", nn::Linear(width, width))) {}
  void forward(const at::Tensor& x, at::Tensor& result, std::vector<at::Tensor>& more) {
    result = torch::tanh(first(x));
    more.push_back(second(x));
  }
  nn::Linear first, second;
};
TORCH_MODULE(WritesOutputs);

// A module that changes its argument in place and returns another tensor.
struct InPlaceImpl : nn::Module {
  explicit InPlaceImpl(int64_t width)
      : linear(register_module("linear", nn::Linear(width, width))) {}
  int64_t forward(const at::Tensor& x) {
    at::Tensor(x).add_(linear(x * 1));
    return x.size(0);
  }
  nn::Linear linear;
};
TORCH_MODULE(InPlace);

struct WritersImpl : nn::Module {
  explicit WritersImpl(int64_t width) : before(width, width), writing(width), in_place(width) {
    register_module("before", before);
    register_module("writing", writing);
    register_module("in_place", in_place);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor result;
    std::vector<at::Tensor> more;
    writing(before(x), result, more);
    at::Tensor changed = result * 2;
    in_place(changed);
    return changed + more[0];
  }
  Unit<nn::Linear> before;
  Unit<WritesOutputs> writing;
  Unit<InPlace> in_place;
};
TORCH_MODULE(Writers);

}  // namespace

TEST_CASE("what a forward writes through references, or in place, is an output: the plain bits") {
  check_twin({.make = [] { return Unit<Writers>(6).ptr(); },
              .loss =
                  [](nn::Module& model, int step, int rank) {
                    auto& writers = dynamic_cast<UnitImpl<WritersImpl>&>(model);
                    return writers.call(values({3, 6}, 100 * step + rank)).square().mean();
                  }});
}

TEST_CASE("a reference argument that forward only reads stays the caller's tensor") {
  struct ReadsImpl : nn::Module {
    ReadsImpl() : linear(register_module("linear", nn::Linear(4, 4))) {}
    at::Tensor forward(at::Tensor& x) { return linear(x * 1); }
    nn::Linear linear;
  };
  struct Reads : nn::ModuleHolder<ReadsImpl> {
    using nn::ModuleHolder<ReadsImpl>::ModuleHolder;
  };
  run_torch_ranks(2, [](Mesh mesh) {
    auto model = build_seeded(7, [] { return Unit<Reads>(); });
    Engine engine(model, mesh, {.mixed_precision = {.output_dtype = torch::kBFloat16}});
    at::Tensor x = values({3, 4}, 1).requires_grad_();
    const at::Tensor same = x;
    model(x).sum().backward();
    CHECK(x.is_same(same));
    CHECK((x.scalar_type() == at::kFloat));
    CHECK(x.grad().defined());
    at::Tensor hidden = values({3, 4}, 1).requires_grad_() * 1;
    hidden += model(hidden);  // legal in place, because `hidden` was not replaced by a view
    hidden.sum().backward();
    CHECK(engine.measure_gradients().finite());
  });
}
