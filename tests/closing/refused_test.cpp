// Tests that programs which cannot be right are refused with a reason.
#include <thread>

#include "closing/support/program_run.h"
#include "closing/support/recompute.h"
#include "closing/support/scripted.h"
#include "fsdp/error.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// Returns the engine's error text on rank 0 of 2 for `run(model, x)`.
template <class Run>
std::string refusal(ScriptedImpl::Script script, Run run) {
  const auto errors = errors_of_ranks(
      2,
      [&](Mesh mesh) {
        auto model = make_scripted(5, script);
        Engine engine(model, mesh, {.debug = true});
        run(model, scripted_input(mesh.rank()));
      },
      torch_ranks_options());
  return errors[0];
}

void forward_and_backward(Unit<Scripted>& model, const at::Tensor& x) { model(x).sum().backward(); }

// A root that calls two units. `detach_gate` controls an operation between the output of the second
// unit and the loss.
Program program_with(uint32_t call_gate, uint32_t detach_gate) {
  Program program;
  program.parts.push_back({.name = "root", .weights = 1, .inputs = 2, .ops = {}, .outputs = {}});
  for (const char* name : {"one", "two"}) {
    program.parts.push_back({.name = name, .weights = 1, .ops = {}, .outputs = {}});
    PartWriter w(program, static_cast<int>(program.parts.size()) - 1);
    w.returns({w.linear(0)});
  }
  const int call = program.new_gate(call_gate), detach = program.new_gate(detach_gate);
  PartWriter root(program, 0);
  const int one = root.call(1, {root.linear(0)});
  const int two = root.call(2, {one}, call);
  root.returns({root.add(root.write({OpKind::kDetach, {two}, 0, detach}), one)});
  return program;
}

}  // namespace

TEST_CASE("a unit called on some ranks only is refused, naming both sides") {
  const std::string failure =
      run_program(program_with(Gate::bit(0, 1), 0), {.prefetch_units = 0}).failure;
  check_contains(failure, "all_gather");
  check_contains(failure, "two");
  check_contains(failure, "rank 1");
}

TEST_CASE("a unit whose output leaves the loss on some ranks only is refused, naming both sides") {
  const std::string failure =
      run_program(program_with(0, Gate::bit(0, 1)), {.prefetch_units = 0}).failure;
  check_contains(failure, "two");
  check_contains(failure, "one");
  check_contains(failure, "rank 1");
}

TEST_CASE("a unit's forward on a second thread is refused") {
  const auto script = [](ScriptedImpl& self, const at::Tensor& x) {
    at::Tensor y;
    std::exception_ptr thrown;
    std::thread([&] {
      try {
        y = self.a(x);
      } catch (...) {
        thrown = std::current_exception();
      }
    }).join();
    if (thrown) std::rethrow_exception(thrown);
    return y;
  };
  check_contains(refusal(script, forward_and_backward),
                 "a unit's forward runs on another thread than the forward that contains it");
}

TEST_CASE("an input made on another thread is refused") {
  const auto run = [](Unit<Scripted>& model, const at::Tensor& x) {
    at::Tensor made = x.clone().set_requires_grad(true);
    std::thread([&] {
      // The node numbers then exceed those of this thread.
      for (int i = 0; i < 3000; ++i) made = made + 1;
    }).join();
    model(made);
  };
  const std::string text = refusal(ScriptedImpl::chain, run);
  check_contains(text,
                 "an input that requires grad was computed on a thread other than the forward's "
                 "(unit '(root)')");
  check_contains(text, "hint: run the whole forward on one thread");
}

TEST_CASE("a gradient that arrives at a unit which is not open is refused, naming both") {
  const auto script = [](ScriptedImpl& self, const at::Tensor& x) {
    at::Tensor leaked;
    {
      UnitScope scope(*self.a, x);
      leaked = self.a->up->weight * 2;
      at::Tensor y = self.a->up(x);
      scope.outputs(y);
    }
    return self.b(x) + leaked.sum();  // the scope does not see `leaked`
  };
  check_contains(
      refusal(script, forward_and_backward),
      "the gradient of parameter 'a.up.weight' arrived after the backward of unit 'a' ended");
}

TEST_CASE("create_graph is refused") {
  const auto run = [](Unit<Scripted>& model, const at::Tensor& x) {
    model(x).sum().backward({}, std::nullopt, /*create_graph=*/true);
  };
  check_contains(refusal(ScriptedImpl::chain, run),
                 "backward with create_graph is not supported through a sharded unit");
}

TEST_CASE("a backward that names sharded parameters as its inputs is refused") {
  const auto run = [](Unit<Scripted>& model, const at::Tensor& x) {
    const std::vector<at::Tensor> inputs = {model->a->up->weight};
    model(x).sum().backward({}, std::nullopt, false, inputs);
  };
  check_contains(refusal(ScriptedImpl::chain, run),
                 "backward(inputs) was called with the sharded parameter 'a.up.weight'");
}

TEST_CASE("a recomputed forward that captures a tensor with a graph is refused") {
  const auto script = [](ScriptedImpl& self, const at::Tensor& x) {
    const at::Tensor captured = self.a(self.head(x));
    const auto segment = [&self, captured](Tensors in) -> Tensors {
      return {self.b(in[0]) + captured};
    };
    return recompute(segment, {self.head(x)})[0];
  };
  check_contains(
      refusal(script, forward_and_backward),
      "a backward that was started inside another backward reaches a unit of another graph");
}

TEST_CASE("autograd::grad through a recomputed unit is refused") {
  const auto script = [](ScriptedImpl& self, const at::Tensor& x) {
    return recompute([&self](Tensors in) -> Tensors { return {self.b(in[0])}; }, {self.head(x)})[0];
  };
  const auto run = [](Unit<Scripted>& model, const at::Tensor& x) {
    const at::Tensor input = x.clone().set_requires_grad(true);
    torch::autograd::grad({model(input).sum()}, {input});
  };
  check_contains(refusal(script, run),
                 "autograd::grad is not supported through a recomputed function");
}

TEST_CASE("an in-place change of what a unit passed through is refused") {
  const auto run = [](Unit<Scripted>& model, const at::Tensor& x) { model(x); };
  const auto changes_output = [](ScriptedImpl& self, const at::Tensor& x) {
    const at::Tensor h = self.head(x);
    UnitScope scope(*self.a, h);
    at::Tensor y = h;
    scope.outputs(y);
    y.add_(1);
    return y;
  };
  check_contains(refusal(changes_output, run), "is a view and is being modified inplace");
  const auto changes_input = [](ScriptedImpl& self, const at::Tensor& x) {
    at::Tensor h = self.head(x);
    UnitScope scope(*self.a, h);
    at::Tensor y = h;
    scope.outputs(y);
    h.add_(1);
    return self.b(y);
  };
  check_contains(refusal(changes_input, run),
                 "its base or another view of its base has been modified inplace");
}

TEST_CASE("autograd::grad gathers and reduces nothing, and the next backward is right") {
  Unit<Scripted> twin = make_scripted();
  Unit<Scripted> plain = plain_scripted(3);
  run_torch_ranks(3, [&](Mesh mesh) {
    auto model = make_scripted();
    Engine engine(model, mesh, {.debug = true});
    const at::Tensor x = scripted_input(mesh.rank()).requires_grad_(true);
    const at::Tensor got = torch::autograd::grad({model(x).sum()}, {x})[0];
    CHECK(engine.stats().reduces == 0);
    model(scripted_input(mesh.rank())).sum().backward();
    check_gradients(engine, *plain);
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    const at::Tensor again = scripted_input(mesh.rank()).requires_grad_(true);
    CHECK(bit_equal(got, torch::autograd::grad({twin(again).sum()}, {again})[0]));
  });
}
