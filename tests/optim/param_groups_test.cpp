// Tests parameter groups whose learning rate and decay change during training.
#include <fsdp/lr_scheduler.h>

#include "engine/support/twin.h"
#include "fsdp/error.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

const Twin kMlp = graph_twin(3, 9, in_a_row);
const std::vector<ParameterGroup> kNamedGroups = {
    {.match = under("u1"), .weight_decay = 0.1, .name = "middle"},
    {.match = is_bias_or_norm, .lr_scale = 2.0}};

OptimizerParamGroup& group_of(Optimizer& optimizer, const std::string& name) {
  for (OptimizerParamGroup& group : optimizer.param_groups()) {
    if (group.name() == name) return group;
  }
  FAIL("no group ", name);
  return optimizer.param_groups().front();
}

// Returns the group of a parameter by the rules of kNamedGroups.
size_t torch_group(const std::string& fqn, const at::Tensor& value) {
  if (fqn.starts_with("u1.")) return 1;
  return value.dim() <= 1 ? 2 : 0;
}

struct Trainee {
  explicit Trainee(const Mesh& mesh, std::vector<ParameterGroup> groups = kNamedGroups)
      : model(build_seeded(7, kMlp.make)),
        engine(model, mesh, Options{}),
        optimizer(engine, {.lr = 0.1, .momentum = 0.9, .groups = std::move(groups)}) {}
  void step(int step, int rank) {
    graph_loss(*model, step, rank).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  std::shared_ptr<torch::nn::Module> model;
  Engine engine;
  SGD optimizer;
};

}  // namespace

TEST_CASE("what is set of a group holds from the next step on, with torch::optim's bits") {
  // Returns the rate and the decay before each step, by group.
  const auto setting = [](int step, size_t group) {
    return std::pair(0.1 / (1 + step + static_cast<int>(group)), group == 0 ? 0.01 * step : 0.02);
  };
  for (const int world : {1, 2, 3}) {
    const auto plain = build_seeded(7, kMlp.make);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (size_t i = 0; i < 3; ++i) {
      std::vector<at::Tensor> tensors;
      for (const auto& item : plain->named_parameters()) {
        if (torch_group(item.key(), item.value()) == i) tensors.push_back(item.value());
      }
      groups.emplace_back(tensors);
    }
    torch::optim::SGD torch_sgd(groups, torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 4; ++step) {
      for (size_t i = 0; i < 3; ++i) {
        auto& options =
            static_cast<torch::optim::SGDOptions&>(torch_sgd.param_groups()[i].options());
        options.lr(setting(step, i).first).weight_decay(setting(step, i).second);
      }
      mean_gradients(*plain, world, [&](int rank) { graph_loss(*plain, step, rank).backward(); });
      torch_sgd.step();
    }
    const auto expected = plain_parameters(*plain);
    run_torch_ranks(world, [&](Mesh mesh) {
      Trainee trainee(mesh);
      for (int step = 0; step < 4; ++step) {
        size_t i = 0;
        for (auto& group : trainee.optimizer.param_groups()) {
          group.set_lr(setting(step, i).first);
          group.set_weight_decay(setting(step, i++).second);
        }
        trainee.step(step, mesh.rank());
      }
      for (const auto& [fqn, value] : full_parameters(trainee.engine)) {
        CAPTURE(fqn);
        CHECK(bit_equal(value, expected.at(fqn)));
      }
    });
  }
}

TEST_CASE("groups have names, rates and decays") {
  Trainee trainee(Mesh::single());
  const std::span<OptimizerParamGroup> groups = trainee.optimizer.param_groups();
  REQUIRE(groups.size() == 3);
  CHECK(groups[0].name() == "default");
  CHECK(groups[1].name() == "middle");
  CHECK(groups[2].name() == "group 2");
  CHECK(groups[1].weight_decay() == 0.1);
  CHECK(groups[2].lr() == 0.2);
  trainee.optimizer.set_lr(0.3);
  CHECK(groups[0].lr() == 0.3);
  CHECK(groups[2].lr() == 0.6);
  groups[2].set_lr(0.5);  // from here on, it has its own rate
  groups[0].set_lr(0.4);  // no other group uses this rate
  trainee.optimizer.set_lr(0.7);
  CHECK(groups[0].lr() == 0.4);
  CHECK(groups[1].lr() == 0.7);
  CHECK(groups[2].lr() == 0.5);
  for (const double wrong : {-0.1, double{INFINITY}, double{NAN}}) {
    CHECK_THROWS_WITH_AS(groups[1].set_lr(wrong), doctest::Contains("group 'middle': lr is"),
                         InvalidArgument);
    CHECK_THROWS_WITH_AS(groups[1].set_weight_decay(wrong),
                         doctest::Contains("group 'middle': weight_decay is"), InvalidArgument);
  }
  CHECK(groups[1].lr() == 0.7);
}

TEST_CASE("a schedule changes a group's own rate as it would an optimizer's of that rate") {
  using Make = std::function<std::unique_ptr<LRScheduler>(Optimizer&)>;
  const auto made = []<class Scheduler>(auto options) -> Make {
    return [=](Optimizer& optimizer) { return std::make_unique<Scheduler>(optimizer, options); };
  };
  const std::vector<std::pair<const char*, Make>> kinds{
      {"step", made.operator()<StepLR>(StepLROptions{.step_size = 2, .gamma = 0.3})},
      {"milestones", made.operator()<MultiStepLR>(MultiStepLROptions{.milestones = {2, 2, 5}})},
      {"exponential", made.operator()<ExponentialLR>(ExponentialLROptions{.gamma = 0.7})},
      {"linear", made.operator()<LinearLR>(LinearLROptions{.total_iters = 6})},
      {"cosine",
       made.operator()<CosineAnnealingLR>(CosineAnnealingLROptions{.T_max = 4, .eta_min = 0.001})},
      {"lambda", made.operator()<LambdaLR>([](int64_t epoch) { return 1.0 / (1 + epoch); })},
  };
  for (const auto& [name, make] : kinds) {
    CAPTURE(name);
    Trainee grouped(Mesh::single()), alone(Mesh::single());
    alone.optimizer.set_lr(0.03);
    OptimizerParamGroup& own = group_of(grouped.optimizer, "middle");
    const OptimizerParamGroup& follows = group_of(grouped.optimizer, "group 2");
    own.set_lr(0.03);
    const auto of_grouped = make(grouped.optimizer), of_alone = make(alone.optimizer);
    for (int epoch = 0; epoch < 11; ++epoch) {
      CAPTURE(epoch);
      CHECK(own.lr() == alone.optimizer.lr());
      CHECK(follows.lr() == 2.0 * grouped.optimizer.lr());
      CHECK(grouped.optimizer.lr() == of_grouped->last_lr());
      of_grouped->step();
      of_alone->step();
    }
  }
}

TEST_CASE("schedules in a row begin each with the group's first rate, and a plateau lowers all") {
  Trainee grouped(Mesh::single()), alone(Mesh::single());
  alone.optimizer.set_lr(0.03);
  OptimizerParamGroup& own = group_of(grouped.optimizer, "middle");
  own.set_lr(0.03);
  const auto rates = [](Optimizer& optimizer, const auto& rate) {
    LinearLR warmup(optimizer, {.total_iters = 3});
    CosineAnnealingLR cosine(optimizer, {.T_max = 4});
    SequentialLR scheduler(optimizer, {.schedulers = {&warmup, &cosine}, .milestones = {3}});
    std::vector<double> rates;
    for (int epoch = 0; epoch < 8; ++epoch) {
      rates.push_back(rate());
      scheduler.step();
    }
    ReduceLROnPlateau plateau(optimizer, {.factor = 0.5, .patience = 0, .min_lr = 0.001});
    for (int epoch = 0; epoch < 8; ++epoch) {
      plateau.step(1.0);
      rates.push_back(rate());
    }
    return rates;
  };
  CHECK(rates(grouped.optimizer, [&] { return own.lr(); }) ==
        rates(alone.optimizer, [&] { return alone.optimizer.lr(); }));
}

TEST_CASE("a group without a parameter, and names given twice, are refused") {
  const auto refuses = [](std::vector<ParameterGroup> groups, const char* what) {
    CHECK_THROWS_WITH_AS(Trainee(Mesh::single(), std::move(groups)), doctest::Contains(what),
                         InvalidArgument);
  };
  refuses({{.match = under("u9")}}, "group 'group 1' of SGD has no parameter");
  refuses({{.match = {}, .name = "embeddings"}}, "group 'embeddings' of SGD has no parameter");
  refuses({{.match = under("")}, {.match = under("u1"), .name = "late"}},
          "group 'late' of SGD has no parameter");
  refuses({{.match = under("u1"), .name = "a"}, {.match = under("u2"), .name = "a"}},
          "SGD has two groups with the name 'a'");
  refuses({{.match = under("u1"), .name = "default"}},
          "SGD has two groups with the name 'default'");
  refuses({{.match = under("u1"), .weight_decay = -1}}, "group 'group 1': weight_decay is -1");
  refuses({{.match = under("u1"), .lr_scale = -1}}, "group 'group 1': lr_scale is -1");
}

TEST_CASE("rates of groups that differ between ranks are an error that names both") {
  const auto errors = errors_of_ranks(
      2,
      [](Mesh mesh) {
        Trainee trainee(mesh);
        group_of(trainee.optimizer, "middle").set_lr(mesh.rank() == 0 ? 0.25 : 0.5);
        for (int step = 0; step < 2; ++step) trainee.step(step, mesh.rank());
      },
      torch_ranks_options());
  for (const std::string& error : errors) {
    CAPTURE(error);
    CHECK(error.find("'optimizer step 1: lr 0.1, middle.lr 0.25'") != std::string::npos);
    CHECK(error.find("'optimizer step 1: lr 0.1, middle.lr 0.5'") != std::string::npos);
  }
}
