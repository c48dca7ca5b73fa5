// An accelerator for machines without one: LibTorch's PrivateUse1 devices "fake:0" to "fake:3". Their memory
// is the host's, and their streams are queues that no thread executes. A job on a stream runs when a thread
// waits for it (for the stream, an event, or a copy that blocks). A missing wait is therefore always
// detected: the test reads the pattern with which fresh memory is filled.
//
// LibTorch registers devices for the whole process, so there is one FakeAccelerator, which install() creates.
// Kernels run on the CPU, after the remaining jobs of their device's current stream. Thread-safe.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

namespace weft::test {

class FakeAccelerator {
 public:
  static constexpr c10::DeviceType type = c10::DeviceType::PrivateUse1;
  static constexpr int devices = 4;
  static constexpr int pooled = 8;  // streams of a device, in addition to its default one

  static FakeAccelerator& install() {
    // never destroyed, because LibTorch keeps the registered pointers
    static auto* accelerator = new FakeAccelerator;
    return *accelerator;
  }
  static c10::Device device(int index) { return {type, static_cast<c10::DeviceIndex>(index)}; }

  using Job = std::function<void()>;

  // Launches a custom kernel on the current stream of `device`.
  void launch(c10::Device device, Job job) { launch(current(device), std::move(job)); }
  // Jobs that are added to the stream from now on wait until ready() is true.
  void block(const c10::Stream& stream, std::function<bool()> ready) {
    launch(stream, [] {}, std::move(ready));
  }
  // Launches a kernel that fills the tensor later.
  void fill_later(const at::Tensor& tensor, double value) {
    launch(tensor.device(), [on_cpu = seen_from_cpu(tensor), value] { on_cpu.fill_(value); });
  }
  c10::Stream current(c10::Device device) {
    return c10::Stream(c10::Stream::UNSAFE, device, current_ids()[static_cast<std::size_t>(device.index())]);
  }
  // Represents the stream as a handle of the backend.
  static void* handle(const c10::Stream& stream) {
    return reinterpret_cast<void*>(
        static_cast<std::uintptr_t>(1 + stream.id() * devices + stream.device_index()));
  }
  static c10::Stream stream_of(void* handle) {
    const auto number = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(handle)) - 1;
    return c10::Stream(c10::Stream::UNSAFE, device(static_cast<int>(number % devices)), number / devices);
  }
  void wait(const c10::Stream& stream) {
    std::unique_lock lock(mutex_);
    const std::uint64_t until = queues_[key(stream)].launched;
    wait_until(lock, [&] { return run(queues_[key(stream)], until); });
  }
  // Runs the jobs that the stream can run now. If the stream waits for an event, the event may depend on
  // other ranks.
  void advance(const c10::Stream& stream) {
    std::lock_guard lock(mutex_);
    Queue& queue = queues_[key(stream)];
    (void)run(queue, queue.launched);
  }
  std::size_t pending(const c10::Stream& stream) {
    std::lock_guard lock(mutex_);
    return queues_[key(stream)].jobs.size();
  }
  std::size_t pending_jobs() {  // of all streams
    std::lock_guard lock(mutex_);
    std::size_t all = 0;
    for (const auto& [stream, queue] : queues_) all += queue.jobs.size();
    return all;
  }
  std::size_t pinned_allocations() {
    std::lock_guard lock(mutex_);
    return pinned_allocations_;
  }
  // Sets whether a kernel writes its results only when its stream runs, as on a GPU. Off: before its call
  // returns.
  void set_results_late(bool late) {
    std::lock_guard lock(mutex_);
    results_late_ = late;
  }
  // The number of waits for all streams of a device.
  std::size_t device_waits() {
    std::lock_guard lock(mutex_);
    return device_waits_;
  }
  // Sets the function that is called with the stream of an event when the event is recorded. It returns a
  // condition for which the event waits in addition to the jobs on the stream. Null: none.
  void set_pending_work(std::function<std::function<bool()>(const c10::Stream&)> ended) {
    std::lock_guard lock(mutex_);
    work_ended_ = std::move(ended);
  }
  // The queries of events: their number while another device was the current one, and the threads that made
  // them since the last take.
  std::size_t queries_without_the_device() {
    std::lock_guard lock(mutex_);
    return queries_without_the_device_;
  }
  std::set<std::thread::id> take_querying_threads() {
    std::lock_guard lock(mutex_);
    return std::exchange(querying_threads_, {});
  }
  // Takes the threads that have requested the number of devices since the last take.
  std::set<std::thread::id> take_counting_threads() {
    std::lock_guard lock(mutex_);
    return std::exchange(counting_threads_, {});
  }
  // The number of times that the allocator was notified of a stream's use of a tensor's memory.
  std::size_t recorded_uses() {
    std::lock_guard lock(mutex_);
    return recorded_uses_;
  }

 private:
  using Key = std::pair<int, c10::StreamId>;
  struct Queue {
    struct Entry {
      Job job;
      std::function<bool()> ready;  // null: always
    };
    std::deque<Entry> jobs;
    std::uint64_t launched = 0, done = 0;
  };
  struct Mark {
    Key stream;
    std::uint64_t at = 0;
    std::function<bool()> work_ended = nullptr;
  };

  static Key key(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }
  static std::array<c10::StreamId, devices>& current_ids() {
    static thread_local std::array<c10::StreamId, devices> ids{};  // as LibTorch's current streams are
    return ids;
  }

  void launch(const c10::Stream& stream, Job job, std::function<bool()> ready = nullptr) {
    std::lock_guard lock(mutex_);
    Queue& queue = queues_[key(stream)];
    queue.jobs.push_back({std::move(job), std::move(ready)});
    ++queue.launched;
  }
  // Caller holds mutex_. Returns false if a job waits for an event that has not occurred.
  bool run(Queue& queue, std::uint64_t until) {
    while (queue.done < until) {
      if (queue.jobs.front().ready && !queue.jobs.front().ready()) return false;
      const Job job = std::move(queue.jobs.front().job);
      queue.jobs.pop_front();
      ++queue.done;
      job();
    }
    return true;
  }
  bool has_happened(const Mark& mark) {
    return run(queues_[mark.stream], mark.at) && (!mark.work_ended || mark.work_ended());
  }
  static void wait_until(std::unique_lock<std::recursive_mutex>& lock,
                         const std::function<bool()>& happened) {
    while (!happened()) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
  }

  // Keeps the storage alive, because the tensor may get another one.
  static at::Tensor seen_from_cpu(const at::Tensor& tensor) {
    return at::from_blob(
        tensor.data_ptr(), tensor.sizes(), tensor.strides(), [keep = tensor.storage()](void*) {},
        tensor.options().device(at::kCPU).requires_grad(false));
  }

  // --- Memory ---

  class Memory final : public c10::Allocator {
   public:
    explicit Memory(bool pinned) : pinned_(pinned) {}
    c10::DataPtr allocate(std::size_t bytes) override {
      void* memory = std::malloc(std::max<std::size_t>(bytes, 1));
      std::memset(memory, 0xA5, bytes);
      if (!pinned_) {
        auto& self = install();
        const int at = self.current_device();
        return {memory, memory, &std::free, device(at)};
      }
      auto& self = install();
      std::lock_guard lock(self.mutex_);
      ++self.pinned_allocations_;
      self.pinned_.insert(memory);
      return {memory, memory, &unpin, c10::Device(c10::kCPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return pinned_ ? &unpin : &std::free; }
    void copy_data(void* to, const void* from, std::size_t bytes) const override {
      std::memcpy(to, from, bytes);
    }

   private:
    static void unpin(void* memory) {
      auto& self = install();
      {
        std::lock_guard lock(self.mutex_);
        self.pinned_.erase(memory);
      }
      std::free(memory);
    }
    bool pinned_;
  };

  static int& current_device_index() {
    static thread_local int index = 0;
    return index;
  }
  int current_device() { return current_device_index(); }

  static at::Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                          std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                          std::optional<at::MemoryFormat> format) {
    const c10::DeviceGuard guard(device.value_or(FakeAccelerator::device(0)));
    static auto* memory = new Memory(false);
    return at::detail::empty_generic(sizes, memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                     dtype.value_or(at::kFloat), format);
  }
  static at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                  std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                                  std::optional<at::Device> device, std::optional<bool>) {
    const c10::DeviceGuard guard(device.value_or(FakeAccelerator::device(0)));
    static auto* memory = new Memory(false);
    return at::detail::empty_strided_generic(sizes, strides, memory,
                                             c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                             dtype.value_or(at::kFloat));
  }
  static at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
    auto& self = install();
    bool late = false;
    if (to.device().type() == type) {
      std::lock_guard lock(self.mutex_);
      late = self.results_late_;
    }
    const auto view = [](const at::Tensor& tensor) {
      return tensor.device().type() == type ? seen_from_cpu(tensor) : tensor;
    };
    const c10::Device device = from.device().type() == type ? from.device() : to.device();
    const c10::Stream stream = self.current(device);
    // The host may write to its own tensor before the stream runs.
    const at::Tensor source = late && !non_blocking && from.is_cpu() ? from.detach().clone() : view(from);
    self.launch(stream, [source, target = view(to)] { target.copy_(source); });
    if (!non_blocking && !late) self.wait(stream);
    return to;
  }
  static at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
    if (to.sizes() != from.sizes()) {  // an operator creates its result before it knows the size
      const at::Tensor resized = at::empty(from.sizes(), to.options());
      to.unsafeGetTensorImpl()->set_storage_keep_dtype(resized.storage());
      to.unsafeGetTensorImpl()->set_sizes_contiguous(from.sizes());
    }
    return copy_from(from, to, false);
  }
  static at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                               std::optional<std::int64_t> offset) {
    return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
  }
  static at::Tensor view(const at::Tensor& self, c10::IntArrayRef sizes) {
    return at::native::view(self, sizes);
  }
  // Without this function LibTorch would copy the tensor to the CPU, and the strides would not fit the
  // contiguous copy.
  static at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
    return at::native::_reshape_alias(self, sizes, strides);
  }
  static void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    at::native::cpu_fallback(op, stack);
  }

  // --- Registrations with LibTorch ---

  class Guard final : public c10::impl::DeviceGuardImplInterface {
   public:
    c10::DeviceType type() const override { return FakeAccelerator::type; }
    c10::Device exchangeDevice(c10::Device to) const override {
      check(to);
      return device(std::exchange(current_device_index(), to.index()));
    }
    c10::Device getDevice() const override { return device(current_device_index()); }
    void setDevice(c10::Device to) const override {
      check(to);
      current_device_index() = to.index();
    }
    void uncheckedSetDevice(c10::Device to) const noexcept override { current_device_index() = to.index(); }
    c10::Stream getStream(c10::Device of) const override {
      return install().current(of.has_index() ? of : getDevice());
    }
    c10::Stream getDefaultStream(c10::Device of) const override {
      return c10::Stream(c10::Stream::DEFAULT, of);
    }
    c10::Stream getStreamFromGlobalPool(c10::Device of, bool) const override {
      auto& self = install();
      std::lock_guard lock(self.mutex_);
      return c10::Stream(c10::Stream::UNSAFE, of,
                         static_cast<c10::StreamId>(1 + self.next_pooled_++ % pooled));
    }
    c10::Stream getNewStream(c10::Device of, int) const override {
      return getStreamFromGlobalPool(of, false);
    }
    c10::Stream exchangeStream(c10::Stream to) const override {
      const auto index = static_cast<std::size_t>(to.device_index());
      return c10::Stream(c10::Stream::UNSAFE, to.device(), std::exchange(current_ids()[index], to.id()));
    }
    void* getStreamNativeHandle(const c10::Stream stream) const override { return handle(stream); }
    void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
      delete static_cast<Mark*>(event);
    }
    void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
      auto& self = install();
      std::lock_guard lock(self.mutex_);
      if (*event == nullptr) *event = new Mark;
      *static_cast<Mark*>(*event) = {key(stream), self.queues_[key(stream)].launched,
                                     self.work_ended_ ? self.work_ended_(stream) : nullptr};
    }
    void block(void* event, const c10::Stream& stream) const override {
      const Mark mark = *static_cast<Mark*>(event);
      install().launch(stream, [] {}, [mark] { return install().has_happened(mark); });
    }
    bool queryEvent(void* event) const override {
      auto& self = install();
      std::lock_guard lock(self.mutex_);
      const Mark& mark = *static_cast<Mark*>(event);
      self.querying_threads_.insert(std::this_thread::get_id());
      if (mark.stream.first != current_device_index()) ++self.queries_without_the_device_;
      return self.queues_[mark.stream].done >= mark.at && (!mark.work_ended || mark.work_ended());
    }
    void synchronizeEvent(void* event) const override { install().wait(*static_cast<Mark*>(event)); }
    bool queryStream(const c10::Stream& stream) const override { return install().pending(stream) == 0; }
    void synchronizeStream(const c10::Stream& stream) const override { install().wait(stream); }
    void synchronizeDevice(c10::DeviceIndex index) const override {
      auto& self = install();
      {
        std::lock_guard lock(self.mutex_);
        ++self.device_waits_;
      }
      for (c10::StreamId id = 0; id <= pooled; ++id)
        self.wait(c10::Stream(c10::Stream::UNSAFE, device(index), id));
    }
    void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {
      auto& self = install();
      std::lock_guard lock(self.mutex_);
      ++self.recorded_uses_;
    }
    c10::DeviceIndex deviceCount() const noexcept override {
      auto& self = install();
      std::lock_guard lock(self.mutex_);
      self.counting_threads_.insert(std::this_thread::get_id());
      return devices;
    }

   private:
    static void check(c10::Device device) {
      TORCH_CHECK(device.index() >= 0 && device.index() < devices, "fake: invalid device ordinal");
    }
  };

  struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
      static const auto* generators = new std::array<at::Generator, devices>{
          at::detail::createCPUGenerator(1), at::detail::createCPUGenerator(2),
          at::detail::createCPUGenerator(3), at::detail::createCPUGenerator(4)};
      return generators->at(index < 0 ? 0 : static_cast<std::size_t>(index));
    }
    bool isPinnedPtr(const void* memory) const override {
      auto& self = install();
      std::lock_guard lock(self.mutex_);
      return self.pinned_.contains(const_cast<void*>(memory));
    }
    at::Allocator* getPinnedMemoryAllocator() const override {
      static auto* memory = new Memory(true);
      return memory;
    }
  };

  void wait(const Mark& mark) {
    std::unique_lock lock(mutex_);
    wait_until(lock, [&] { return has_happened(mark); });
  }

  FakeAccelerator()
      : kernels_(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__),
        sparse_(torch::Library::IMPL, "aten", c10::DispatchKey::SparsePrivateUse1, __FILE__, __LINE__),
        others_(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__) {
    c10::register_privateuse1_backend("fake");
    static const auto* guard = new Guard;
    const c10::impl::DeviceGuardImplRegistrar registrar(type, guard);
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    kernels_.impl("empty.memory_format", &empty);
    kernels_.impl("empty_strided", &empty_strided);
    kernels_.impl("_copy_from", &copy_from);
    kernels_.impl("_copy_from_and_resize", &copy_from_and_resize);
    kernels_.impl("as_strided", &as_strided);
    kernels_.impl("view", &view);
    kernels_.impl("_reshape_alias", &reshape_alias);
    // LibTorch's own operators, which the library of each device must register.
    sparse_.impl("_sparse_coo_tensor_with_dims_and_tensors",
                 &at::native::new_with_dims_and_tensor_sparse_symint);
    sparse_.impl("_indices", &at::native::_indices_sparse);
    sparse_.impl("_values", &at::native::_values_sparse);
    others_.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
  }

  torch::Library kernels_, sparse_, others_;
  std::recursive_mutex mutex_;  // guards the members below
  std::map<Key, Queue> queues_;
  std::set<void*> pinned_;
  bool results_late_ = false;
  std::size_t pinned_allocations_ = 0, device_waits_ = 0, recorded_uses_ = 0;
  std::size_t queries_without_the_device_ = 0;
  std::set<std::thread::id> querying_threads_, counting_threads_;
  std::function<std::function<bool()>(const c10::Stream&)> work_ended_;
  std::uint64_t next_pooled_ = 0;
};

}  // namespace weft::test
