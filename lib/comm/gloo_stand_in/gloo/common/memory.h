// A replacement for a header that gloo does not install although three of its installed headers
// include it. Used only where the original is missing (lib/comm/gloo.cmake).
//
// These classes are layout-compatible with those of the library: each has one member. The owner of
// an object has a std::shared_ptr that deletes nothing, the transport keeps a std::weak_ptr, and a
// user holds a std::shared_ptr while it uses the object. The owner's destructor waits until there
// are no users.
#pragma once

#include <memory>
#include <thread>

namespace gloo
{

template <typename T>
class ShareableNonOwningPtr;
template <typename T>
class WeakNonOwningPtr;

template <typename T>
class NonOwningPtr final
{
  public:
    NonOwningPtr() = default;
    explicit NonOwningPtr(const WeakNonOwningPtr<T> &weak) : used_(weak.kept_.lock())
    {
    }

    T *operator->() const noexcept
    {
        return used_.get();
    }
    explicit operator bool() const noexcept
    {
        return used_ != nullptr;
    }

  private:
    std::shared_ptr<T> used_;
};

template <typename T>
class WeakNonOwningPtr final
{
  public:
    WeakNonOwningPtr() = default;
    explicit WeakNonOwningPtr(const ShareableNonOwningPtr<T> &owner) : kept_(owner.owned_)
    {
    }

    // Returns whether an object was ever assigned; that object may have been destroyed since.
    explicit operator bool() const noexcept
    {
        const std::weak_ptr<T> none;

        return kept_.owner_before(none) || none.owner_before(kept_);
    }

  private:
    friend class NonOwningPtr<T>;
    std::weak_ptr<T> kept_;
};

template <typename T>
class ShareableNonOwningPtr final
{
  public:
    explicit ShareableNonOwningPtr(T *object) : owned_(object, [](void *) {})
    {
    }
    ShareableNonOwningPtr(const ShareableNonOwningPtr &) = delete;
    ShareableNonOwningPtr &operator=(const ShareableNonOwningPtr &) = delete;

    ~ShareableNonOwningPtr()
    {
        const std::weak_ptr<T> users(owned_);

        owned_.reset();
        while (!users.expired())
            std::this_thread::yield();
    }

  private:
    friend class WeakNonOwningPtr<T>;
    std::shared_ptr<T> owned_;
};

} // namespace gloo
