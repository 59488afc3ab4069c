// Tests the ways in which a unit can be written, constructed and called.
#include "engine/support/twin.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace nn = torch::nn;

namespace {

struct TimesImpl : nn::Module {
  TimesImpl() { weight = register_parameter("weight", torch::randn({4, 4})); }
  at::Tensor times(const at::Tensor& x) const { return torch::matmul(x, weight); }
  at::Tensor weight;
};

struct DefaultsImpl : TimesImpl {
  at::Tensor forward(const at::Tensor& x, std::vector<at::Tensor> more = {}, double factor = 2.0) {
    at::Tensor y = times(x) * factor;
    for (const at::Tensor& each : more) y = y + each;
    return y;
  }
};
TORCH_MODULE(Defaults);

struct BeforeImpl : TimesImpl {
  at::Tensor forward(const at::Tensor& before, const at::Tensor& x, double factor = 2.0) {
    return times(before.defined() ? x + before : x) * factor;
  }
};

struct NoexceptImpl : TimesImpl {
  at::Tensor forward(const at::Tensor& x) noexcept { return times(x); }
};
struct LvalueImpl : TimesImpl {
  at::Tensor forward(const at::Tensor& x) & { return times(x); }
};
struct ConstImpl : TimesImpl {
  at::Tensor forward(const at::Tensor& x) const { return times(x); }
};
struct ConstLvalueImpl : TimesImpl {
  at::Tensor forward(at::Tensor x) const& { return times(x); }
};
struct ConstNoexceptImpl : TimesImpl {
  at::Tensor forward(const at::Tensor& x) const noexcept { return times(x); }
};
struct LvalueNoexceptImpl : TimesImpl {
  at::Tensor forward(const at::Tensor& x) & noexcept { return times(x); }
};
struct StaticImpl : TimesImpl {
  static at::Tensor forward(const at::Tensor& x) { return x * 3; }
};
struct VirtualImpl : TimesImpl {
  virtual at::Tensor forward(const at::Tensor& x) { return times(x); }
};

template <class M>
std::shared_ptr<M> plain() {
  return build_seeded(7, [] { return std::make_shared<M>(); });
}

// Checks that `call` gives the same bits on the plain module, on a unit without an engine, and on a
// sharded unit.
template <class T, class M = typename Unit<T>::Impl>
void check_call(const std::function<at::Tensor(Unit<T>&)>& as_unit, const at::Tensor& expected) {
  auto alone = build_seeded(7, [] { return Unit<T>(); });
  CHECK(bit_equal(as_unit(alone), expected));
  run_torch_ranks(2, [&](Mesh mesh) {
    auto unit = build_seeded(7, [] { return Unit<T>(); });
    Engine engine(unit, mesh, {.debug = true});
    const at::Tensor y = as_unit(unit);
    CHECK(bit_equal(y, expected));
    if (y.requires_grad()) {
      y.sum().backward();
      CHECK(engine.stats().reduces >= 1);
    }
  });
}

template <class M>
void check_qualified() {
  const at::Tensor x = values({3, 4}, 1);
  const at::Tensor expected = plain<M>()->forward(x);
  check_call<M>([&](auto& unit) { return unit(x); }, expected);
  check_call<M>([&](auto& unit) { return unit->forward(x); }, expected);
  check_call<M>([&](auto& unit) { return nn::Sequential(unit)->forward(x); }, expected);
}

}  // namespace

TEST_CASE("forward through the arrow takes default arguments, and braces if none is left out") {
  const at::Tensor x = values({3, 4}, 1), more = values({3, 4}, 2);
  const auto model = plain<DefaultsImpl>();
  const auto check = [](const at::Tensor& expected, auto call) {
    check_call<Defaults>(call, expected);
  };
  check(model->forward(x), [&](auto& unit) { return unit(x); });
  check(model->forward(x), [&](auto& unit) { return unit->forward(x); });
  check(model->forward(x), [&](auto& unit) { return (*unit).forward(x); });
  check(model->forward(x), [&](auto& unit) { return unit.get()->forward(x); });
  check(model->forward(x, {more}, 3), [&](auto& unit) { return unit->forward(x, {more}, 3); });
  check(model->forward(x, {}, 3), [&](auto& unit) { return unit->forward(x, {}, 3); });
  check_call<BeforeImpl>([&](auto& unit) { return unit->forward({}, x, 3); },
                         plain<BeforeImpl>()->forward({}, x, 3));
}

TEST_CASE("LibTorch's own modules leave default arguments out as they do plainly") {
  const at::Tensor x = values({3, 2, 6}, 1);
  auto model = build_seeded(7, [] { return nn::MultiheadAttention(6, 2); });
  const auto [expected, none] = model->forward(x, x, x, at::Tensor(), false);
  run_torch_ranks(2, [&, expected = expected](Mesh mesh) {
    auto unit = build_seeded(7, [] { return Unit<nn::MultiheadAttention>(6, 2); });
    Engine engine(unit, mesh);
    CHECK(bit_equal(std::get<0>(unit->forward(x, x, x, at::Tensor(), false)), expected));
    CHECK_FALSE(std::get<1>(unit->forward(x, x, x, at::Tensor(), false)).defined());
    CHECK(std::get<1>(unit->forward(x, x, x)).defined());
  });
}

TEST_CASE("a call that forward does not take does not compile, and can be asked for") {
  using Called = Unit<Defaults>;
  CHECK(std::is_invocable_v<Called&, at::Tensor>);
  CHECK(std::is_invocable_v<Called&, at::Tensor, std::vector<at::Tensor>, int>);
  CHECK_FALSE(std::is_invocable_v<Called&>);
  CHECK_FALSE(std::is_invocable_v<Called&, at::Tensor, double>);
  CHECK_FALSE(std::is_invocable_v<Called&, at::Tensor, std::vector<at::Tensor>, int, int>);
}

TEST_CASE("forward may be noexcept, const, & and static, of a class without a holder") {
  check_qualified<NoexceptImpl>();
  check_qualified<LvalueImpl>();
  check_qualified<ConstImpl>();
  check_qualified<ConstLvalueImpl>();
  check_qualified<ConstNoexceptImpl>();
  check_qualified<LvalueNoexceptImpl>();
  check_qualified<StaticImpl>();
  check_qualified<VirtualImpl>();
}

TEST_CASE("a const forward is called through a const unit") {
  struct HalfImpl : TimesImpl {
    at::Tensor forward(const at::Tensor& x, double factor = 0.5) const { return times(x) * factor; }
  };
  const at::Tensor x = values({3, 4}, 1);
  const auto model = plain<HalfImpl>();
  const at::Tensor half = model->forward(x), thrice = model->forward(x, 3);
  run_torch_ranks(2, [&](Mesh mesh) {
    auto unit = build_seeded(7, [] { return Unit<HalfImpl>(); });
    Engine engine(unit, mesh);
    const auto& seen = unit;
    CHECK(bit_equal(seen->forward(x), half));
    CHECK(bit_equal((*seen).forward(x, 3), thrice));
  });
}

TEST_CASE("a ModuleList's unit is called as what it is, and names that way when it is not") {
  struct NetImpl : nn::Module {
    NetImpl() {
      list = register_module("list", nn::ModuleList());
      list->push_back(Unit<Defaults>());
      list->push_back(Unit<VirtualImpl>());
    }
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor h = list[0]->as<Unit<Defaults>>()->forward(x, {}, 3);
      const at::Tensor y = list->at<Unit<Defaults>::ContainedType>(0).forward(h);
      return list[1]->as<Unit<VirtualImpl>>()->forward(y) + list[1]->as<VirtualImpl>()->forward(y);
    }
    nn::ModuleList list = nullptr;
  };
  const at::Tensor x = values({3, 4}, 1);
  const auto model = plain<NetImpl>();  // contains units, but has no engine
  check_call<NetImpl>([&](auto& net) { return net(x); }, model->forward(x));
  run_torch_ranks(2, [&](Mesh mesh) {
    Unit<NetImpl> net;
    Engine engine(net, mesh);
    CHECK_THROWS_WITH(net->list[0]->as<Defaults>()->forward(x),
                      doctest::Contains("list[i]->as<fsdp::Unit<Block>>(), not as<Block>()"));
    CHECK(net->list[0]->as<Unit<nn::Linear>>() == nullptr);
  });
}

TEST_CASE("an AnyModule gives back the unit that it holds") {
  nn::AnyModule any((Unit<Defaults>()));
  CHECK(any.get<Unit<Defaults>::Impl>().weight.size(0) == 4);
  CHECK(any.ptr()->as<Unit<Defaults>>() == &any.get<Unit<Defaults>::Impl>());
}

TEST_CASE("a unit's holder is empty, shares a unit, or makes one") {
  Unit<Defaults> none = nullptr, made;
  CHECK(none.is_empty());
  none = made;
  CHECK(none.ptr() == made.ptr());
  Unit<Defaults> copy(none);
  CHECK(copy.ptr() == made.ptr());
  const Unit<Defaults> of_impl(made.ptr());
  CHECK(of_impl.ptr() == made.ptr());
  const std::shared_ptr<nn::Module> module = made.ptr();
  const auto contained = std::dynamic_pointer_cast<Unit<Defaults>::ContainedType>(module);
  CHECK(Unit<Defaults>(contained).ptr() == module);
  nn::Module parent;
  none = parent.register_module("child", Unit<Defaults>());
  CHECK(none.ptr() == parent.named_children()["child"]);
}

TEST_CASE("a module that exists may be an argument of a unit's constructor") {
  struct AroundImpl : nn::Module {
    explicit AroundImpl(Defaults the_inner) : inner(register_module("inner", the_inner)) {}
    at::Tensor forward(const at::Tensor& x) { return inner->forward(x); }
    Defaults inner;
  };
  struct HeirImpl : nn::Module {  // derived from the test's own module class
    explicit HeirImpl(std::shared_ptr<HeirImpl> the_parent) : parent(std::move(the_parent)) {}
    at::Tensor forward(const at::Tensor& x) { return x; }
    std::shared_ptr<HeirImpl> parent;
  };
  Defaults inner;
  Unit<AroundImpl> around(inner);
  CHECK(around->inner.ptr() == inner.ptr());
  const auto parent = std::make_shared<HeirImpl>(nullptr);
  Unit<HeirImpl> heir(parent);
  CHECK(heir->parent == parent);
}

TEST_CASE("a loss that a unit keeps in a member, and does not return, is refused with the fix") {
  struct KeeperImpl : torch::nn::Module {
    KeeperImpl() { register_module("linear", linear); }
    at::Tensor forward(const at::Tensor& x) {
      at::Tensor h = linear(x);
      penalty = linear->weight.square().sum();
      return h;
    }
    torch::nn::Linear linear{6, 6};
    at::Tensor penalty;
  };
  struct Keeper : torch::nn::ModuleHolder<KeeperImpl> {
    using torch::nn::ModuleHolder<KeeperImpl>::ModuleHolder;
  };
  struct NetImpl : torch::nn::Module {
    NetImpl() { register_module("keeper", keeper); }
    at::Tensor forward(const at::Tensor& x) { return keeper(x).sum(); }
    Unit<Keeper> keeper;
  };
  struct Net : torch::nn::ModuleHolder<NetImpl> {
    using torch::nn::ModuleHolder<NetImpl>::ModuleHolder;
  };
  run_torch_ranks(2, [](Mesh mesh) {
    Unit<Net> model = build_seeded(7, [] { return Unit<Net>(); });
    Engine engine(model, mesh);
    const at::Tensor loss = model(values({2, 6}, 1)) + model->keeper->penalty;
    CHECK_THROWS_WITH(
        loss.backward(),
        doctest::Contains("if backward reports this error, let the unit's forward return every "
                          "tensor that the loss uses, including auxiliary losses"));
  });
}
