#include "fsdp/lr_scheduler.h"

#include <cmath>
#include <fstream>
#include <sstream>

#include "engine/support/twin.h"
#include "fsdp/error.h"
#include "optim/support/error_texts.h"
#include "support/source_tree.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct Subject {
  explicit Subject(double lr = 0.1) : adamw(engine, {.lr = lr}) {}
  Unit<torch::nn::Linear> model{2, 2}, other_model{2, 2};
  Engine engine{model, Mesh::single()}, other_engine{other_model, Mesh::single()};
  AdamW adamw;
  SGD sgd{other_engine, {.lr = 0.1, .momentum = 0.9}};
};

// A scheduler in a case of tests/optim/record_lr_schedulers.py. Options that are not named have
// their defaults.
struct Named {
  explicit Named(std::istringstream words) {
    words >> name;
    for (std::string word; words >> word;) {
      options[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
    }
  }

  template <class T>
  void get(const std::string& option, T& value) const {
    if (options.contains(option)) value = static_cast<T>(std::stod(options.at(option)));
  }
  template <class T>
  void get(const std::string& option, std::vector<T>& values) const {
    if (!options.contains(option)) return;
    std::istringstream list(options.at(option));
    for (std::string each; std::getline(list, each, ',');) values.push_back(std::stod(each));
  }
  bool is(const std::string& option, const std::string& value) const {
    return options.contains(option) && options.at(option) == value;
  }

  std::string name;
  std::map<std::string, std::string> options;
};

struct Case {
  std::string line;
  Named scheduler;
  std::vector<Named> inner;  // of SequentialLR
  std::vector<double> lr, momentum;
};

std::vector<double> unpacked(std::istringstream words) {
  std::vector<double> values;
  for (std::string word; words >> word;) {
    const size_t star = word.find('*');
    values.insert(values.end(), star == std::string::npos ? 1 : std::stoul(word.substr(star + 1)),
                  std::stod(word));
  }
  return values;
}

std::vector<Case> recorded_cases() {
  std::ifstream file(source_file("tests/optim/records/lr_schedulers.txt"));
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);) {
    const std::string kind = line.substr(0, line.find(' '));
    std::istringstream rest(line.substr(kind.size()));
    if (kind == "case") cases.push_back({line, Named(std::move(rest)), {}, {}, {}});
    if (kind == "with") cases.back().inner.emplace_back(std::move(rest));
    if (kind == "lr") cases.back().lr = unpacked(std::move(rest));
    if (kind == "momentum") cases.back().momentum = unpacked(std::move(rest));
  }
  return cases;
}

OneCycleLROptions one_cycle_options(const Named& from) {
  OneCycleLROptions options;
  from.get("max_lr", options.max_lr);
  from.get("total_steps", options.total_steps);
  from.get("epochs", options.epochs);
  from.get("steps_per_epoch", options.steps_per_epoch);
  from.get("pct_start", options.pct_start);
  if (from.is("anneal_strategy", "linear")) {
    options.anneal_strategy = OneCycleLROptions::Anneal::kLinear;
  }
  from.get("cycle_momentum", options.cycle_momentum);
  from.get("base_momentum", options.base_momentum);
  from.get("max_momentum", options.max_momentum);
  from.get("div_factor", options.div_factor);
  from.get("final_div_factor", options.final_div_factor);
  from.get("three_phase", options.three_phase);
  return options;
}

ReduceLROnPlateauOptions plateau_options(const Named& from) {
  ReduceLROnPlateauOptions options;
  if (from.is("mode", "max")) options.mode = ReduceLROnPlateauOptions::Mode::kMax;
  from.get("factor", options.factor);
  from.get("patience", options.patience);
  from.get("threshold", options.threshold);
  if (from.is("threshold_mode", "abs")) {
    options.threshold_mode = ReduceLROnPlateauOptions::Threshold::kAbs;
  }
  from.get("cooldown", options.cooldown);
  from.get("min_lr", options.min_lr);
  from.get("eps", options.eps);
  return options;
}

std::unique_ptr<LRScheduler> make_scheduler(const Named& from, Optimizer& optimizer) {
  if (from.name == "StepLR") {
    StepLROptions options;
    from.get("step_size", options.step_size);
    from.get("gamma", options.gamma);
    return std::make_unique<StepLR>(optimizer, options);
  }
  if (from.name == "MultiStepLR") {
    MultiStepLROptions options;
    from.get("milestones", options.milestones);
    from.get("gamma", options.gamma);
    return std::make_unique<MultiStepLR>(optimizer, options);
  }
  if (from.name == "ExponentialLR") {
    ExponentialLROptions options;
    from.get("gamma", options.gamma);
    return std::make_unique<ExponentialLR>(optimizer, options);
  }
  if (from.name == "LinearLR") {
    LinearLROptions options;
    from.get("start_factor", options.start_factor);
    from.get("end_factor", options.end_factor);
    from.get("total_iters", options.total_iters);
    return std::make_unique<LinearLR>(optimizer, options);
  }
  if (from.name == "CosineAnnealingLR") {
    CosineAnnealingLROptions options;
    from.get("T_max", options.T_max);
    from.get("eta_min", options.eta_min);
    return std::make_unique<CosineAnnealingLR>(optimizer, options);
  }
  if (from.name == "LambdaLR") {
    double decay = 0;
    from.get("decay", decay);
    return std::make_unique<LambdaLR>(optimizer,
                                      [decay](int64_t epoch) { return std::pow(decay, epoch); });
  }
  REQUIRE(from.name == "OneCycleLR");
  return std::make_unique<OneCycleLR>(optimizer, one_cycle_options(from));
}

// The scheduler of a case and its optimizer.
struct Schedule {
  explicit Schedule(const Case& of) : scheduler_of(of.scheduler) {
    double lr = 0.1;
    scheduler_of.get("lr", lr);
    subject.adamw.set_lr(lr);
    SequentialLROptions sequence;
    scheduler_of.get("milestones", sequence.milestones);
    for (const Named& each : of.inner) {
      inner.push_back(make_scheduler(each, optimizer));
      sequence.schedulers.push_back(inner.back().get());
    }
    if (!inner.empty()) {
      scheduler = std::make_unique<SequentialLR>(optimizer, sequence);
    } else if (scheduler_of.name == "ReduceLROnPlateau") {
      plateau = std::make_unique<ReduceLROnPlateau>(optimizer, plateau_options(scheduler_of));
    } else {
      scheduler = make_scheduler(scheduler_of, optimizer);
    }
  }

  // Returns the metric of record_lr_schedulers.py for this step.
  double metric(int64_t step) const {
    if (step % 97 == 96) return std::nan("");
    const double value = static_cast<double>((7 * step * step + 3 * step) % 11) / 16 + 4 -
                         static_cast<double>(std::min<int64_t>(step, 130)) / 64;
    return scheduler_of.is("mode", "max") ? -value : value;
  }
  void step(int64_t at) const { scheduler ? scheduler->step() : plateau->step(metric(at)); }
  double last_lr() const { return scheduler ? scheduler->last_lr() : plateau->last_lr(); }
  LRSchedulerState state() const { return scheduler ? scheduler->state() : plateau->state(); }
  void load(const LRSchedulerState& state) const {
    scheduler ? scheduler->load(state) : plateau->load(state);
  }

  const Named& scheduler_of;
  Subject subject;
  Optimizer& optimizer =
      scheduler_of.is("optimizer", "SGD") ? static_cast<Optimizer&>(subject.sgd) : subject.adamw;
  std::vector<std::unique_ptr<LRScheduler>> inner;
  std::unique_ptr<LRScheduler> scheduler;
  std::unique_ptr<ReduceLROnPlateau> plateau;
};

bool is_near(double value, double expected) {
  return std::abs(value - expected) <= 1e-12 * std::abs(expected);
}

// Runs a case. From step `resumes` on, another scheduler with another optimizer continues.
void check_case(const Case& of, size_t resumes) {
  CAPTURE(of.line);
  auto schedule = std::make_unique<Schedule>(of);
  std::vector<double> set;
  of.scheduler.get("set", set);
  REQUIRE(!of.lr.empty());
  for (size_t step = 0; step < of.lr.size(); ++step) {
    CAPTURE(step);
    CHECK(is_near(schedule->optimizer.lr(), of.lr[step]));
    CHECK(schedule->last_lr() == schedule->optimizer.lr());
    if (!of.momentum.empty()) {
      CHECK(is_near(schedule->optimizer.momentum(), of.momentum[step]));
    }
    if (step + 1 == of.lr.size()) break;
    if (step + 1 == resumes) {
      const LRSchedulerState state = schedule->state();
      schedule = std::make_unique<Schedule>(of);
      schedule->load(state);
      CHECK(schedule->state() == state);
    }
    if (!set.empty() && step + 1 == static_cast<size_t>(set[0])) {
      schedule->optimizer.set_lr(set[1]);
    }
    schedule->step(static_cast<int64_t>(step));
  }
}

template <class Make>
void check_refused(Make make, const char* text) {
  CHECK_THROWS_WITH_AS(make(), doctest::Contains(text), InvalidArgument);
}

}  // namespace

TEST_CASE("rates and momenta are PyTorch's, whatever the options, step by step") {
  const std::vector<Case> cases = recorded_cases();
  CHECK(cases.size() == 47);
  for (const Case& each : cases) check_case(each, 0);
}

TEST_CASE("a scheduler that has loaded another's state goes on as that one would") {
  for (const Case& each : recorded_cases()) {
    for (const size_t resumes : {1, 18, 73, 160}) check_case(each, resumes);
  }
}

TEST_CASE("with a LrSchedule LambdaLR is Hugging Face's warm-up and decay") {
  const LrSchedule schedule{
      .shape = LrSchedule::Shape::kCosine, .warmup_steps = 3, .total_steps = 10};
  Subject subject;
  LambdaLR scheduler(subject.adamw, schedule);
  for (int64_t step = 0; step < 12; ++step, scheduler.step()) {
    CHECK(subject.adamw.lr() == 0.1 * schedule.factor(step));
  }
}

TEST_CASE("a scheduler for an optimizer that had one begins with the first one's rate") {
  Subject subject;
  {
    ExponentialLR earlier(subject.adamw, {.gamma = 0.5});
    for (int step = 0; step < 3; ++step) earlier.step();
  }
  LambdaLR scheduler(subject.adamw, [](int64_t epoch) { return epoch == 0 ? 1 : 0.5; });
  CHECK(subject.adamw.lr() == 0.1);
  scheduler.step();
  CHECK(subject.adamw.lr() == 0.05);
}

TEST_CASE("options that are no schedule are refused by name") {
  Subject subject;
  AdamW& optimizer = subject.adamw;
  const double nan = std::nan("");
  check_refused([&] { StepLR(optimizer, {}); },
                "StepLR: step_size is 0; hint: use 1 epoch or more");
  check_refused([&] { StepLR(optimizer, {.step_size = 1, .gamma = -1}); }, "gamma is -1");
  check_refused([&] { MultiStepLR(optimizer, {.milestones = {1}, .gamma = nan}); },
                "MultiStepLR: gamma is nan");
  check_refused([&] { ExponentialLR(optimizer, {}); }, "ExponentialLR: gamma is 0");
  check_refused([&] { LinearLR(optimizer, {.start_factor = 0}); },
                "start_factor is 0; hint: use a factor above");
  check_refused([&] { LinearLR(optimizer, {.start_factor = 1.1}); }, "start_factor is 1.1");
  check_refused([&] { LinearLR(optimizer, {.end_factor = 2}); },
                "end_factor is 2; hint: use a factor from 0");
  check_refused([&] { LinearLR(optimizer, {.total_iters = 0}); }, "total_iters is 0");
  check_refused([&] { CosineAnnealingLR(optimizer, {}); }, "CosineAnnealingLR: T_max is 0");
  check_refused([&] { CosineAnnealingLR(optimizer, {.T_max = 2, .eta_min = -1}); },
                "eta_min is -1");
  check_refused([&] { OneCycleLR(optimizer, {.total_steps = 3}); }, "OneCycleLR: max_lr is 0");
  check_refused([&] { OneCycleLR(optimizer, {.max_lr = 1, .epochs = 3}); },
                "total_steps is 0; hint: set it to 1 optimizer step or more, or set epochs and");
  check_refused([&] { OneCycleLR(optimizer, {.max_lr = 1, .total_steps = 10, .pct_start = 1.5}); },
                "pct_start is 1.5");
  check_refused([&] { OneCycleLR(optimizer, {.max_lr = 1, .total_steps = 10, .pct_start = 0.1}); },
                "pct_start is 0.1; hint: set it so that the rate rises for more than one step");
  check_refused([&] { OneCycleLR(optimizer, {.max_lr = 1, .total_steps = 9, .div_factor = 0}); },
                "div_factor is 0");
  check_refused(
      [&] { OneCycleLR(optimizer, {.max_lr = 1, .total_steps = 9, .final_div_factor = nan}); },
      "final_div_factor is nan");
  check_refused([&] { ReduceLROnPlateau(optimizer, {.factor = 1}); },
                "ReduceLROnPlateau: factor is 1; hint: use 0 to less than 1");
  check_refused([&] { ReduceLROnPlateau(optimizer, {.min_lr = -1}); }, "min_lr is -1");
  CHECK(optimizer.lr() == 0.1);
  CHECK(optimizer.momentum() == 0.9);
}

TEST_CASE("SequentialLR refuses what is no sequence, and schedulers of another optimizer") {
  Subject subject;
  StepLR one(subject.adamw, {.step_size = 1}), other(subject.adamw, {.step_size = 2});
  StepLR foreign(subject.sgd, {.step_size = 1});
  check_refused([&] { SequentialLR(subject.adamw, {}); }, "0 schedulers do not fit 0 milestones");
  check_refused(
      [&] {
        SequentialLR(subject.adamw, {.schedulers = {&one, &other}});
      },
      "SequentialLR: 2 schedulers do not fit 0 milestones; hint: pass one milestone per scheduler "
      "except the first, in rising order");
  check_refused(
      [&] {
        SequentialLR(subject.adamw, {.schedulers = {&one, &other, &one}, .milestones = {5, 3}});
      },
      "3 schedulers do not fit 2 milestones");
  for (LRScheduler* wrong :
       {static_cast<LRScheduler*>(&foreign), static_cast<LRScheduler*>(nullptr)}) {
    check_refused([&] { SequentialLR(subject.adamw, {.schedulers = {wrong}}); },
                  "SequentialLR: a scheduler belongs to another optimizer");
  }
}

TEST_CASE("a step after the last one of OneCycleLR is an error that says so") {
  Subject subject;
  OneCycleLR scheduler(subject.adamw, {.max_lr = 1,
                                       .total_steps = 3,
                                       .anneal_strategy = OneCycleLROptions::Anneal::kLinear,
                                       .base_momentum = 0.1,
                                       .max_momentum = 0.99});
  for (int step = 0; step < 3; ++step) scheduler.step();  // once after each step of the optimizer
  CHECK(subject.adamw.lr() == doctest::Approx(1 / 25.0 / 1e4));
  CHECK(subject.adamw.momentum() == 0.99);
  CHECK_THROWS_WITH_AS(
      scheduler.step(),
      doctest::Contains(
          "OneCycleLR: step 4 is after the last of 3 steps; hint: set total_steps to the number"),
      StateError);
}

TEST_CASE("a rate that would be negative is refused as set_lr refuses it") {
  Subject subject;
  LambdaLR scheduler(subject.adamw, [](int64_t epoch) { return 1.0 - epoch; });
  scheduler.step();
  check_refused([&] { scheduler.step(); }, kLearningRateHint);
}

TEST_CASE("the state of another kind of scheduler is refused, and nothing changes") {
  Subject subject;
  StepLR scheduler(subject.adamw, {.step_size = 1});
  ReduceLROnPlateau plateau(subject.adamw);
  SequentialLR sequence(subject.adamw, {.schedulers = {&scheduler}});
  sequence.step();
  const LRSchedulerState before = scheduler.state();
  check_refused(
      [&] { scheduler.load(plateau.state()); },
      "a scheduler's state lacks the entry 'base_lr'; hint: load a state() of the same kind");
  check_refused([&] { scheduler.load(sequence.state()); },
                "a scheduler's state has the unknown entry 'schedulers.0.base_lr'");
  check_refused([&] { plateau.load(before); }, "a scheduler's state lacks the entry 'best'");
  CHECK(scheduler.state() == before);
}
