// Tests LibTorch's own modules as units, alone and inside its containers. Also tests clones and
// UnitScope.
#include "engine/support/error_texts.h"
#include "engine/support/twin.h"
#include "fsdp/error.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

namespace nn = torch::nn;

// Compares the gradients, outputs and buffers of one step with those of the plain model.
void check_step(const std::function<std::shared_ptr<nn::Module>()>& make,
                const std::function<at::Tensor(nn::Module&, int rank)>& run) {
  for (const int world : {1, 2, 3}) {
    CAPTURE(world);
    const Twin twin{.make = make,
                    .loss = [&](nn::Module& model, int step,
                                int rank) { return run(model, 10 * step + rank).square().mean(); },
                    .steps = 2};
    check_same_bits(train_sharded(twin, world, {.debug = true}), train_plain(twin, world));
  }
}

template <class Holder>
auto& as_unit(nn::Module& module) {
  return dynamic_cast<UnitImpl<typename Holder::ContainedType>&>(module);
}

struct BranchesImpl : nn::Module {
  BranchesImpl() : linear(4, 4) { register_module("linear", linear); }
  struct Result {
    at::Tensor value;
    std::vector<at::Tensor> pieces;
    std::optional<at::Tensor> maybe;
    int count = 0;
  };
  Result forward(const std::tuple<at::Tensor, at::Tensor>& pair, double factor = 2.0) {
    const at::Tensor y = linear(std::get<0>(pair)) * factor + std::get<1>(pair);
    return {.value = y, .pieces = y.chunk(2, -1), .maybe = torch::tanh(y), .count = 3};
  }
  nn::Linear linear;
};
TORCH_MODULE(Branches);

struct BranchesHolderImpl : nn::Module {
  BranchesHolderImpl() : branches() { register_module("branches", branches); }
  at::Tensor forward(const at::Tensor& x) {
    const BranchesImpl::Result result = branches(std::make_tuple(x, x * 0.5));
    CHECK(result.count == 3);
    return result.pieces[1].sum() + result.maybe->sum();  // `value` is not used
  }
  Unit<Branches> branches;
};
TORCH_MODULE(BranchesHolder);

struct TwoWaysImpl : nn::Module {
  TwoWaysImpl() : encoder(4, 6), decoder(6, 4) {
    register_module("encoder", encoder);
    register_module("decoder", decoder);
  }
  at::Tensor forward(const at::Tensor& x) { return decoder(encode(x)); }
  at::Tensor encode(const at::Tensor& x) { return torch::tanh(encoder(x)); }
  nn::Linear encoder, decoder;
};
TORCH_MODULE(TwoWays);

}  // namespace

TEST_CASE("Linear, alone as the root, trains with the plain model's bits") {
  check_step([] { return Unit<nn::Linear>(5, 3).ptr(); },
             [](nn::Module& m, int seed) {
               return as_unit<nn::Linear>(m).call(values({4, 5}, seed));
             });
}

TEST_CASE("Conv2d trains with the plain model's bits, with channels-last weights too") {
  for (const bool channels_last : {false, true}) {
    CAPTURE(channels_last);
    check_step(
        [=] {
          Unit<nn::Conv2d> unit(nn::Conv2dOptions(3, 5, 3).padding(1));
          if (channels_last) {
            const at::NoGradGuard no_grad;
            unit->weight.set_data(unit->weight.contiguous(at::MemoryFormat::ChannelsLast));
          }
          return unit.ptr();
        },
        [=](nn::Module& m, int seed) {
          at::Tensor x = values({2, 3, 4, 4}, seed);
          if (channels_last) {
            x = x.contiguous(at::MemoryFormat::ChannelsLast);
            CHECK(m.parameters()[0].is_contiguous(at::MemoryFormat::ChannelsLast));
          }
          return as_unit<nn::Conv2d>(m).call(x);
        });
  }
}

TEST_CASE("BatchNorm2d trains with the plain model's bits and keeps its buffers") {
  run_torch_ranks(2, [](Mesh mesh) {
    auto plain = build_seeded(7, [] { return nn::BatchNorm2d(3); });
    Unit<nn::BatchNorm2d> model(3);
    if (mesh.rank() == 1) model->running_mean.fill_(9.0);  // rank 0's values are used
    Engine engine(model, mesh);
    const at::Tensor x = values({4, 3, 2, 2}, 1);
    CHECK(bit_equal(model(x), plain(x)));
    CHECK(bit_equal(model->running_mean, plain->running_mean));
    CHECK(bit_equal(model->running_var, plain->running_var));
    model->eval();
    plain->eval();
    CHECK(bit_equal(model(x), plain(x)));
  });
  check_step([] { return Unit<nn::BatchNorm2d>(3).ptr(); },
             [](nn::Module& m, int seed) {
               return as_unit<nn::BatchNorm2d>(m).call(values({4, 3, 2, 2}, seed)).pow(3);
             });
}

TEST_CASE("Embedding, LSTM, MultiheadAttention and a TransformerEncoderLayer keep the bits") {
  SUBCASE("Embedding") {
    check_step([] { return Unit<nn::Embedding>(nn::EmbeddingOptions(11, 5).padding_idx(0)).ptr(); },
               [](nn::Module& m, int seed) {
                 return as_unit<nn::Embedding>(m).call(batch_of(seed, 0, 11).tokens);
               });
  }
  SUBCASE("LSTM") {
    check_step([] { return Unit<nn::LSTM>(nn::LSTMOptions(4, 3).num_layers(2)).ptr(); },
               [](nn::Module& m, int seed) {
                 const auto [y, state] = as_unit<nn::LSTM>(m).call(values({5, 2, 4}, seed));
                 return y.sum(0) + std::get<0>(state).sum(0);
               });
  }
  SUBCASE("MultiheadAttention") {
    check_step([] { return Unit<nn::MultiheadAttention>(6, 2).ptr(); },
               [](nn::Module& m, int seed) {
                 const at::Tensor x = values({3, 2, 6}, seed);
                 return std::get<0>(as_unit<nn::MultiheadAttention>(m).call(x, x, x));
               });
  }
  SUBCASE("TransformerEncoderLayer") {
    check_step(
        [] {
          return Unit<nn::TransformerEncoderLayer>(
                     nn::TransformerEncoderLayerOptions(6, 2).dim_feedforward(10).dropout(0.0))
              .ptr();
        },
        [](nn::Module& m, int seed) {
          return as_unit<nn::TransformerEncoderLayer>(m).call(values({3, 2, 6}, seed));
        });
  }
}

TEST_CASE("units work in Sequential, ModuleList and AnyModule") {
  SUBCASE("Sequential as the root") {
    struct NetImpl : nn::Module {
      NetImpl() {
        net = register_module(
            "net", nn::Sequential(Unit<nn::Linear>(4, 8), nn::ReLU(), Unit<nn::Linear>(8, 4)));
      }
      at::Tensor forward(const at::Tensor& x) { return net->forward(x); }
      nn::Sequential net = nullptr;
    };
    struct Net : nn::ModuleHolder<NetImpl> {
      using nn::ModuleHolder<NetImpl>::ModuleHolder;
    };
    check_step([] { return Unit<Net>().ptr(); },
               [](nn::Module& m, int seed) {
                 CHECK(m.named_parameters().contains("net.2.weight"));
                 return as_unit<Net>(m).call(values({3, 4}, seed));
               });
  }
  SUBCASE("ModuleList and AnyModule") {
    struct NetImpl : nn::Module {
      NetImpl() : any(Unit<nn::Linear>(4, 4)) {
        list = register_module("list", nn::ModuleList());
        for (int i = 0; i < 3; ++i) list->push_back(Unit<nn::Linear>(4, 4));
        register_module("any", any.ptr());
      }
      at::Tensor forward(const at::Tensor& x) {
        at::Tensor h = any.forward(x);
        for (const auto& each : *list) h = torch::tanh(as_unit<nn::Linear>(*each).forward(h));
        return h;
      }
      nn::ModuleList list = nullptr;
      nn::AnyModule any;
    };
    struct Net : nn::ModuleHolder<NetImpl> {
      using nn::ModuleHolder<NetImpl>::ModuleHolder;
    };
    check_step([] { return Unit<Net>().ptr(); },
               [](nn::Module& m, int seed) {
                 return as_unit<Net>(m).call(values({3, 4}, seed));
               });
  }
}

TEST_CASE("structs, tuples, optionals, numbers and default arguments travel through a unit") {
  check_step([] { return Unit<BranchesHolder>().ptr(); },
             [](nn::Module& m, int seed) {
               at::Tensor x = values({3, 4}, seed);
               x.set_requires_grad(true);
               return as_unit<BranchesHolder>(m).call(x);
             });
}

TEST_CASE("UnitScope seats a unit for its other methods, with gradients") {
  struct RootImpl : nn::Module {
    RootImpl() : inner() { register_module("inner", inner); }
    at::Tensor forward(const at::Tensor& x) {
      UnitScope scope(*inner, x);
      at::Tensor code = inner->encode(x);
      scope.outputs(code);
      return code;
    }
    Unit<TwoWays> inner;
  };
  struct Root : nn::ModuleHolder<RootImpl> {
    using nn::ModuleHolder<RootImpl>::ModuleHolder;
  };
  check_step([] { return Unit<Root>().ptr(); },
             [](nn::Module& m, int seed) {
               return as_unit<Root>(m).call(values({3, 4}, seed));
             });
  run_torch_ranks(2, [](Mesh mesh) {
    auto plain = build_seeded(7, [] { return TwoWays(); });
    auto model = build_seeded(7, [] { return Unit<TwoWays>(); });
    Engine engine(model, mesh);
    const at::Tensor x = values({3, 4}, 1);
    CHECK_THROWS_WITH(model->encode(x), doctest::Contains("through fsdp::UnitScope"));
    const at::NoGradGuard no_grad;
    UnitScope scope(*model, x);
    at::Tensor code = model->encode(x);
    scope.outputs(code);
    CHECK(bit_equal(code, plain->encode(x)));
    CHECK_THROWS_WITH(model->encode(x), doctest::Contains("is sharded"));
  });
}

TEST_CASE("a call through a pointer to the plain module throws and names the remedy") {
  run_torch_ranks(2, [](Mesh mesh) {
    Unit<nn::Linear> model(4, 4);
    Engine engine(model, mesh);
    nn::LinearImpl* plain = model.get();
    CHECK_THROWS_WITH(plain->forward(torch::ones({1, 4})),
                      doctest::Contains("call the unit through fsdp::Unit"));
  });
}

TEST_CASE("a clone before the engine is a unit of its own, after it is refused") {
  run_torch_ranks(2, [](Mesh mesh) {
    Unit<nn::Linear> model(4, 3);
    const auto copy = std::dynamic_pointer_cast<UnitImpl<nn::LinearImpl>>(model->clone());
    REQUIRE(copy != nullptr);
    CHECK(torch::equal(copy->weight, model->weight));
    Engine engine(model, mesh);
    CHECK_FALSE(copy->attached());
    CHECK(copy->forward(torch::ones({1, 4})).isfinite().all().item<bool>());
    CHECK_THROWS_WITH_AS(model->clone(), doctest::Contains(kNoClone), StateError);
    Engine second(std::shared_ptr<nn::Module>(copy), mesh, {});  // two engines on one mesh
    copy->forward(torch::ones({1, 4})).sum().backward();
    CHECK(second.stats().reduces == 1);
    CHECK(engine.stats().reduces == 0);
  });
  const nn::Sequential net(Unit<nn::Linear>(2, 2), nn::ReLU());
  const auto cloned = std::dynamic_pointer_cast<nn::SequentialImpl>(net->clone());
  CHECK(torch::equal(cloned->parameters()[0], net->parameters()[0]));
  CHECK(std::dynamic_pointer_cast<UnitImpl<nn::LinearImpl>>(cloned->ptr(0)) != nullptr);
}

TEST_CASE("parameters of no element and of no dimension are sharded like others") {
  struct OddImpl : nn::Module {
    OddImpl() {
      scale = register_parameter("scale", torch::full({}, 3.0));
      none = register_parameter("none", torch::empty({0, 4}));
      bias = register_parameter("bias", torch::zeros({5}));
    }
    at::Tensor forward(const at::Tensor& x) { return x * scale + bias + none.sum(); }
    at::Tensor scale, none, bias;
  };
  struct Odd : nn::ModuleHolder<OddImpl> {
    using nn::ModuleHolder<OddImpl>::ModuleHolder;
  };
  check_step([] { return Unit<Odd>().ptr(); },
             [](nn::Module& m, int seed) {
               return as_unit<Odd>(m).call(values({2, 5}, seed));
             });
}

TEST_CASE("two engines on one mesh train a generator against a discriminator") {
  for (const int world : {1, 2, 3}) {
    const auto make = [] { return Unit<nn::Linear>(4, 4); };
    auto plain_g = build_seeded(1, make), plain_d = build_seeded(2, make);
    const auto loss = [](auto& g, auto& d, int rank) {
      return d(torch::tanh(g(values({2, 4}, rank)))).square().mean();
    };
    mean_gradients(*plain_g, world, [&](int rank) { loss(plain_g, plain_d, rank).backward(); });
    run_torch_ranks(world, [&](Mesh mesh) {
      auto g = build_seeded(1, make), d = build_seeded(2, make);
      Engine generator(g, mesh), discriminator(d, mesh);
      loss(g, d, mesh.rank()).backward();
      for (ShardedParameter& each : generator.sharded_parameters()) {
        const at::Tensor whole = plain_g->named_parameters()[each.fqn].grad().flatten();
        CHECK(bit_equal(each.local.grad(),
                        whole.slice(0, each.begin, each.begin + each.local.numel())));
      }
      CHECK(discriminator.stats().reduces == 1);
    });
  }
}
