// Tests the closing rule alone, with node numbers, tasks and units, and without graphs.
#include "plan/backward_scheduler.h"

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/error.h"

using namespace fsdp;

namespace {

struct FakeUnit : ScheduledUnit {
  std::string name;
};

struct FakeEngine : ScheduledEngine {
  explicit FakeEngine(std::vector<std::string>& shared_log) : log(shared_log) {}
  void open(int unit, bool captures) override {
    log.push_back((captures ? "open " : "open without capture ") + units[unit]->name);
  }
  void close(int unit, bool reduces) override {
    log.push_back((reduces ? "reduce " : "reshard ") + units[unit]->name);
  }
  void idle(int unit) override { log.push_back("idle " + units[unit]->name); }
  void abandon(int unit) override { log.push_back("abandon " + units[unit]->name); }
  void end_forward(int, Call&, bool) override {}
  void finalize_backward() override { log.push_back("finalize"); }
  void abandon_backward() override { log.push_back("abandon pass"); }
  std::vector<std::string>& log;
  std::vector<std::shared_ptr<FakeUnit>> units;
};

// The backward scheduler of a mesh over a fake autograd. Each call has one output node, which is
// the call itself.
struct Scene {
  Scene() {
    scheduler = std::make_shared<BackwardScheduler>(BackwardScheduler::Queries{
        .will_run = [this](void* node) { return to_run.contains(node); },
        .inputs_given = [this] { return inputs_given; },
        .at_end_of_task = [this](std::function<void()> run) { at_end.push_back(std::move(run)); }});
    scheduler->join(engine);
  }
  std::shared_ptr<FakeUnit> unit(std::string name) {
    const auto made = std::make_shared<FakeUnit>();
    made->engine = &engine;
    made->index = static_cast<int>(engine.units.size());
    made->name = std::move(name);
    engine.units.push_back(made);
    return made;
  }
  // Makes a call in the graph of the next backward. It owns the node numbers from `begin` on.
  std::shared_ptr<Call> call(const std::shared_ptr<FakeUnit>& unit, uint64_t begin,
                             int forward_task = -1) {
    auto made = std::make_shared<Call>(unit, *scheduler);
    made->begin = begin;
    made->forward_task = forward_task;
    made->output_nodes.push_back(made.get());
    to_run.insert(made.get());
    return made;
  }
  void fire(Call& call, uint64_t sequence, int task = 0) {
    scheduler->pre_backward(call, task, sequence);
    to_run.erase(&call);
  }
  // Ends the innermost task. fail_task makes the task fail instead.
  void end_task() {
    const auto run = std::move(at_end.back());
    at_end.pop_back();
    run();
  }
  void fail_task() { at_end.pop_back(); }

  std::vector<std::string> log;
  FakeEngine engine{log};
  std::set<void*> to_run;
  bool inputs_given = false;
  std::vector<std::function<void()>> at_end;
  std::shared_ptr<BackwardScheduler> scheduler;
};

using Log = std::vector<std::string>;

}  // namespace

TEST_CASE("a unit closes at the first tick below its call, not before") {
  Scene scene;
  const auto call = scene.call(scene.unit("a"), 10);
  scene.fire(*call, 19);
  scene.scheduler->tick(0, 10);
  CHECK(scene.log == Log{"open a"});
  scene.scheduler->tick(0, 9);
  CHECK(scene.log == Log{"open a", "reduce a"});
  scene.end_task();
  CHECK(scene.log == Log{"open a", "reduce a", "finalize"});
  CHECK_FALSE(scene.scheduler->in_backward());
}

TEST_CASE("a call fires once a task, however many outputs it has") {
  Scene scene;
  const auto call = scene.call(scene.unit("a"), 10);
  scene.fire(*call, 19);
  scene.fire(*call, 15);
  CHECK(scene.log == Log{"open a"});
  scene.end_task();
  scene.fire(*call, 19, 1);  // a second backward through a retained graph
  CHECK(scene.log == Log{"open a", "reduce a", "finalize", "open a"});
}

TEST_CASE("the previous unit closes before the next one opens, without any other tick") {
  Scene scene;
  const auto older = scene.call(scene.unit("a"), 10), newer = scene.call(scene.unit("b"), 20);
  scene.fire(*newer, 29);
  scene.fire(*older, 19);
  CHECK(scene.log == Log{"open b", "reduce b", "open a"});
}

TEST_CASE("several units close in descending order of their oldest fired call") {
  Scene scene;
  const auto a = scene.call(scene.unit("a"), 10), b = scene.call(scene.unit("b"), 20);
  const auto c = scene.call(scene.unit("c"), 30);
  // They fire in the order of their outputs' numbers, as nested calls do.
  scene.fire(*a, 40);
  scene.fire(*c, 39);
  scene.fire(*b, 38);
  scene.scheduler->tick(0, 5);
  CHECK(scene.log == Log{"open a", "open c", "open b", "reduce c", "reduce b", "reduce a"});
}

TEST_CASE("a unit with calls still to run rests and is reduced once") {
  Scene scene;
  const auto shared = scene.unit("shared");
  const auto first = scene.call(shared, 10);
  const auto between = scene.call(scene.unit("between"), 20);
  const auto last = scene.call(shared, 30);
  scene.fire(*last, 39);
  scene.scheduler->tick(0, 25);
  CHECK(scene.log == Log{"open shared"});  // over, but unsharded until another unit unshards
  scene.fire(*between, 24);
  scene.fire(*first, 15);
  scene.scheduler->tick(0, 5);
  CHECK(scene.log == Log{"open shared", "idle shared", "open between", "reduce between",
                         "open shared", "reduce shared"});
}

TEST_CASE("a unit that rests keeps its parameters while it is recomputed") {
  Scene scene;
  const auto unit = scene.unit("a");
  const auto still_to_run = scene.call(unit, 10);
  const auto call = scene.call(unit, 30);
  scene.fire(*call, 35);
  scene.scheduler->tick(0, 20);
  scene.scheduler->push_call(scene.call(unit, 50, /*forward_task=*/0));
  scene.scheduler->rest_idle(nullptr);  // a unit inside the recomputed unit begins
  CHECK(scene.log == Log{"open a"});
  scene.scheduler->pop_call();
  scene.scheduler->rest_idle(nullptr);
  CHECK(scene.log == Log{"open a", "idle a"});
}

TEST_CASE("a call that is alive but not in this backward holds nothing up") {
  Scene scene;
  const auto unit = scene.unit("a");
  const auto other_graph = scene.call(unit, 10), call = scene.call(unit, 20);
  scene.to_run.erase(other_graph.get());
  scene.fire(*call, 25);
  scene.scheduler->tick(0, 15);
  CHECK(scene.log == Log{"open a", "reduce a"});
}

TEST_CASE("a call that dies is forgotten") {
  Scene scene;
  const auto unit = scene.unit("a");
  auto dead = scene.call(unit, 10);
  const auto call = scene.call(unit, 20);
  dead.reset();
  REQUIRE(unit->calls.size() == 1);
  scene.fire(*call, 25);
  scene.scheduler->tick(0, 15);
  CHECK(scene.log == Log{"open a", "reduce a"});
}

TEST_CASE("enclosing calls fire first, outermost first, if they are in the graph") {
  Scene scene;
  const auto outer = scene.call(scene.unit("outer"), 10);
  const auto middle = scene.call(scene.unit("middle"), 12);
  const auto inner = scene.call(scene.unit("inner"), 14);
  inner->parent = middle;
  middle->parent = outer;
  SUBCASE("all in the graph") {
    scene.fire(*inner, 19);
    CHECK(scene.log == Log{"open outer", "open middle", "open inner"});
    scene.fire(*outer, 18);
    CHECK(scene.log.size() == 3);
  }
  SUBCASE("the outer outputs are not used") {
    scene.to_run.erase(outer.get());
    scene.to_run.erase(middle.get());
    scene.fire(*inner, 19);
    CHECK(scene.log == Log{"open inner"});
  }
}

TEST_CASE("in a backward inside a forward the calls that run around a fired one fire first") {
  Scene scene;
  const auto root = scene.unit("root"), a = scene.unit("a");
  auto running = std::make_shared<Call>(root, *scene.scheduler);
  running->begin = 5;
  scene.scheduler->push_call(running);
  const auto inner = scene.call(a, 10);
  inner->parent = running;
  scene.fire(*inner, 19);
  scene.scheduler->fire_running(*root, 0);  // no effect, because it has fired
  scene.scheduler->tick(0, 7);              // a node of the root itself
  scene.end_task();
  CHECK(scene.log == Log{"open root", "open a", "reduce a", "reduce root", "finalize"});
  scene.log.clear();
  scene.scheduler->fire_running(*root,
                                1);  // the root receives the first gradient of the next backward
  scene.end_task();
  CHECK(scene.log == Log{"open root", "reduce root", "finalize"});
  scene.scheduler->pop_call();
}

TEST_CASE("what no tick closed is closed at the end of the task, newest first") {
  Scene scene;
  const auto a = scene.call(scene.unit("a"), 10), b = scene.call(scene.unit("b"), 20);
  scene.fire(*a, 40);
  scene.fire(*b, 39);
  scene.end_task();
  CHECK(scene.log == Log{"open a", "open b", "reduce b", "reduce a", "finalize"});
}

TEST_CASE("a recomputed unit closes with the inner task, the units around it stay open") {
  Scene scene;
  const auto outer = scene.call(scene.unit("outer"), 10);
  scene.fire(*outer, 30, 0);
  scene.scheduler->enter(0);
  const auto recomputed = scene.call(scene.unit("a"), 50, /*forward_task=*/0);
  scene.fire(*recomputed, 55, 1);
  scene.scheduler->tick(1, 5);  // numbers of the inner graph must not order the outer graph
  CHECK(scene.log == Log{"open outer", "open a", "reduce a"});
  scene.end_task();
  CHECK(scene.scheduler->in_backward());
  scene.end_task();
  CHECK(scene.log == Log{"open outer", "open a", "reduce a", "reduce outer", "finalize"});
}

TEST_CASE("a unit that is open outside an inner task is not closed in it") {
  Scene scene;
  const auto unit = scene.unit("a");
  const auto outside = scene.call(unit, 10);
  scene.fire(*outside, 30, 0);
  const auto recomputed = scene.call(unit, 50, /*forward_task=*/0);
  scene.fire(*recomputed, 55, 1);
  scene.scheduler->tick(1, 5);
  scene.end_task();
  CHECK(scene.log == Log{"open a", "open a"});
  scene.scheduler->tick(0, 5);
  CHECK(scene.log == Log{"open a", "open a", "reduce a"});
}

TEST_CASE("a recomputation that reaches into another graph is refused") {
  Scene scene;
  const auto outer = scene.call(scene.unit("outer"), 10);
  const auto captured = scene.call(scene.unit("captured"), 5);
  scene.fire(*outer, 30, 0);
  CHECK_THROWS_WITH_AS(
      scene.fire(*captured, 8, 1),
      doctest::Contains(
          "a recomputed function used a tensor whose graph was built outside the function"),
      StateError);
}

TEST_CASE("a backward with given inputs opens without capture and reduces nothing") {
  Scene scene;
  scene.inputs_given = true;
  const auto call = scene.call(scene.unit("a"), 10);
  scene.fire(*call, 19);
  scene.scheduler->tick(0, 5);
  scene.end_task();
  CHECK(scene.log == Log{"open without capture a", "reshard a", "finalize"});
}

TEST_CASE("a task that fails takes back what it has opened") {
  Scene scene;
  const auto call = scene.call(scene.unit("a"), 10);
  scene.fire(*call, 19);
  scene.fail_task();
  CHECK(scene.log == Log{"open a", "abandon a", "abandon pass"});
  CHECK_FALSE(scene.scheduler->in_backward());
}

TEST_CASE("units that only a failed inner task opened close in one order, however they opened") {
  for (const bool swaps : {false, true}) {
    Scene scene;
    const auto outside = scene.call(scene.unit("outer"), 10);
    scene.fire(*outside, 30, 0);
    std::vector<std::shared_ptr<FakeUnit>> units;
    for (int i = 0; i < 3; ++i) units.push_back(scene.unit(std::to_string(i)));
    std::vector<std::shared_ptr<Call>> calls;
    for (const int i : swaps ? std::vector{2, 0, 1} : std::vector{0, 1, 2}) {
      calls.push_back(scene.call(units[i], 50 + i, /*forward_task=*/0));
      scene.fire(*calls.back(), 60, 1);
    }
    scene.fail_task();
    calls.clear();
    scene.log.clear();
    scene.end_task();
    CHECK(scene.log == Log{"reduce 2", "reduce 1", "reduce 0", "reduce outer", "finalize"});
  }
}

TEST_CASE("the scheduler ticks for all engines of a mesh") {
  Scene scene;
  std::vector<std::string>& log = scene.log;
  FakeEngine second(log);
  scene.scheduler->join(second);
  const auto generator = scene.call(scene.unit("generator"), 10);
  const auto discriminator = scene.call(scene.unit("discriminator"), 20);
  scene.fire(*discriminator, 29);
  scene.fire(*generator, 19);
  scene.end_task();
  CHECK(log == Log{"open discriminator", "reduce discriminator", "open generator",
                   "reduce generator", "finalize", "finalize"});
  scene.scheduler->leave(second);
}

TEST_CASE("the unit that runs is the innermost forward, else the backward that was opened last") {
  Scene scene;
  const auto running = [&](const std::shared_ptr<FakeUnit>& unit, BackwardScheduler::Phase phase) {
    const BackwardScheduler::Running now = scene.scheduler->running();
    return now.unit == unit.get() && now.phase == phase;
  };
  const auto root = scene.unit("root"), a = scene.unit("a");
  CHECK(scene.scheduler->running().unit == nullptr);
  const auto outer = scene.call(root, 1), inner = scene.call(a, 10);
  scene.scheduler->push_call(outer);
  scene.scheduler->push_call(inner);
  CHECK(running(a, BackwardScheduler::Phase::kForward));
  scene.scheduler->pop_call();
  CHECK(running(root, BackwardScheduler::Phase::kForward));
  scene.scheduler->pop_call();
  CHECK(scene.scheduler->running().unit == nullptr);
  scene.fire(*outer, 30);
  CHECK(running(root, BackwardScheduler::Phase::kBackward));
  scene.fire(*inner, 20);
  CHECK(running(a, BackwardScheduler::Phase::kBackward));
  const auto again = scene.call(root, 40, /*forward_task=*/0);
  scene.scheduler->push_call(again);
  CHECK(running(root, BackwardScheduler::Phase::kRecompute));
  scene.scheduler->pop_call();
  scene.scheduler->tick(0, 9);
  CHECK(running(root, BackwardScheduler::Phase::kBackward));
  scene.end_task();
  CHECK(scene.scheduler->running().unit == nullptr);
}

TEST_CASE("a unit's forward on another thread than its caller's is refused") {
  Scene scene;
  scene.scheduler->push_call(scene.call(scene.unit("a"), 10));
  scene.scheduler->check_thread();
  std::string text;
  std::thread([&] {
    try {
      scene.scheduler->check_thread();
    } catch (const StateError& error) {
      text = error.what();
    }
  }).join();
  CHECK(text ==
        "a unit's forward runs on another thread than the forward that contains it; hint: call all "
        "units of one forward from one thread");
  scene.scheduler->pop_call();
}

TEST_CASE("a backward through a destroyed engine's graph is refused") {
  Scene scene;
  const auto call = scene.call(scene.unit("a"), 10);
  scene.engine.units.clear();
  CHECK_THROWS_WITH_AS(scene.fire(*call, 19),
                       "cannot run backward: the engine of the graph was destroyed; hint: keep the "
                       "engine alive until backward is done",
                       StateError);
}
